#!/bin/bash
# Runs inside the folder, once: creates and migrates the databases, the keys,
# the first administrator and the catalogue.
set -eu
. /etc/lab/database.sh
export HOME=/root LANG=C.UTF-8
mariadb-install-db --no-defaults --user=root --datadir=/var/lib/mysql --skip-test-db --auth-root-authentication-method=normal
database &
until mariadb -e 'select 1' >/dev/null 2>&1; do
	kill -0 $! || exit 1
	sleep 0.2
done
for name in keystone glance nova nova_api nova_cell0 placement neutron; do
	mariadb -e "create database $name"
done

(
	keystone-manage --config-file /etc/lab/keystone.conf db_sync
	keystone-manage --config-file /etc/lab/keystone.conf fernet_setup --keystone-user root --keystone-group root
	keystone-manage --config-file /etc/lab/keystone.conf credential_setup --keystone-user root --keystone-group root
	keystone-manage --config-file /etc/lab/keystone.conf bootstrap --bootstrap-password secret \
		--bootstrap-region-id lab --bootstrap-public-url http://127.0.0.1:5000/v3 \
		--bootstrap-internal-url http://127.0.0.1:5000/v3 --bootstrap-admin-url http://127.0.0.1:5000/v3
	while read -r type url; do
		mariadb keystone -e "insert into service (id, type, enabled, extra) values (md5('$type'), '$type', 1, '{\"name\": \"$type\"}')"
		for interface in public internal admin; do
			mariadb keystone -e "insert into endpoint (id, interface, service_id, url, extra, enabled, region_id)
				values (md5('$type$interface'), '$interface', md5('$type'), '$url', '{}', 1, 'lab')"
		done
	done <<-'EOF'
		compute http://127.0.0.1:8774/v2.1
		placement http://127.0.0.1:8778
		network http://127.0.0.1:9696
		image http://127.0.0.1:9292
	EOF
) &
jobs="$!"
(
	nova-manage --config-file /etc/lab/nova.conf api_db sync
	nova-manage --config-file /etc/lab/nova.conf cell_v2 map_cell0
	nova-manage --config-file /etc/lab/nova.conf db sync
	nova-manage --config-file /etc/lab/nova.conf cell_v2 create_cell --name cell1
) &
jobs="$jobs $!"
(
	neutron-db-manage --config-file /etc/lab/neutron.conf --config-file /etc/lab/ml2.conf upgrade heads
	for host in gpu1 gpu2; do
		mariadb neutron -e "insert into agents (id, agent_type, \`binary\`, topic, host, admin_state_up,
			created_at, started_at, heartbeat_timestamp, description, configurations, \`load\`)
			values (uuid(), 'Open vSwitch agent', 'neutron-openvswitch-agent', 'N/A', '$host', 1,
			utc_timestamp(), utc_timestamp(), utc_timestamp(), '',
			'{\"tunnel_types\": [], \"bridge_mappings\": {}, \"datapath_type\": \"system\"}', 0)"
	done
) &
jobs="$jobs $!"
(
	OS_PLACEMENT_CONFIG_DIR=/etc/lab placement-manage --config-file /etc/lab/placement.conf db sync
	glance-manage --config-file /etc/lab/glance.conf db_sync
) &
jobs="$jobs $!"
for job in $jobs; do wait "$job"; done
mariadb-admin shutdown
wait
