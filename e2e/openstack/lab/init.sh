#!/bin/bash
# Starts the services and stays to bury what ends. A service that ends takes the
# lab with it, by name.
set -u
. /etc/lab/database.sh
ip link set lo up
export HOME=/root LANG=C.UTF-8 OS_PLACEMENT_CONFIG_DIR=/etc/lab OS_KEYSTONE_CONFIG_FILES=/etc/lab/keystone.conf
declare -A names

start() {
	local name=$1
	shift
	"$@" >"/var/log/lab/$name.log" 2>&1 </dev/null 3>&- &
	names[$!]=$name
}

# until_open waits for a port, or until anything has ended.
until_open() {
	until (: >"/dev/tcp/127.0.0.1/$1") 2>/dev/null; do
		for pid in "${!names[@]}"; do
			kill -0 "$pid" 2>/dev/null || died "$pid"
		done
		sleep 0.1
	done
}

died() {
	echo "died ${names[$1]}" >&3
	exit 1
}

wsgi() { # PORT FILE
	exec uwsgi-core --plugin python311 --http11-socket "127.0.0.1:$1" --wsgi-file "$2" --master --die-on-term \
		--processes 2 --threads 16 --enable-threads --buffer-size 65535 --thunder-lock
}

start mariadb database
start rabbitmq /usr/lib/rabbitmq/bin/rabbitmq-server # Debian's own wants a user of its own
until_open 3306
mariadb neutron -e 'update agents set heartbeat_timestamp = utc_timestamp()'
start keystone wsgi 5000 /usr/bin/keystone-wsgi-public
start placement wsgi 8778 /etc/lab/placement.wsgi
start neutron neutron-server --config-file /etc/lab/neutron.conf --config-file /etc/lab/ml2.conf
until_open 5672
start conductor nova-conductor --config-file /etc/lab/nova.conf
start nova nova-api --config-file /etc/lab/nova.conf
start scheduler nova-scheduler --config-file /etc/lab/nova.conf
start glance glance-api --config-file /etc/lab/glance.conf
for port in 5000 8778 8774; do until_open "$port"; done
# Now the conductor is there, too: a hypervisor that asks before loses 10 seconds.
# The package would bring a hypervisor along; the program itself needs none.
for host in gpu1 gpu2; do
	start "compute-$host" python3 -c 'from nova.cmd.compute import main; main()' --config-file /etc/lab/nova.conf --config-file "/etc/lab/$host.conf"
done
for port in 9292 9696; do until_open "$port"; done
echo ready >&3
while wait -n -p pid; do
	[ -z "${names[$pid]:-}" ] || died "$pid"
done
[ -z "${names[${pid:-0}]:-}" ] || died "$pid"
