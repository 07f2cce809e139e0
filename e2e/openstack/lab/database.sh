# The database of the lab: alone in its namespace, so nobody needs a password;
# thrown away at the end, so nothing has to be safe on disk.
database() {
	mkdir -p /run/mysqld
	exec mariadbd --no-defaults --user=root --datadir=/var/lib/mysql --socket=/run/mysqld/mysqld.sock \
		--bind-address=127.0.0.1 --skip-grant-tables --character-set-server=utf8 --collation-server=utf8_general_ci \
		--innodb-flush-log-at-trx-commit=0 --skip-innodb-doublewrite --skip-log-bin --performance-schema=OFF \
		--innodb-buffer-pool-size=128M --innodb-log-file-size=16M --innodb-flush-method=fsync \
		--skip-innodb-use-native-aio --max-connections=500
}
