#!/bin/sh
# Installs Debian's PostgreSQL where there is no server. The tests start their
# own; the host gets no cluster and no service of it.
set -eu
if ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null; then
	exit 0
fi
if [ "$(id -u)" != 0 ]; then
	echo "there is no PostgreSQL server: install Debian's package postgresql, or run this as root" >&2
	exit 1
fi
folder=/etc/postgresql-common/createcluster.d
mkdir -p $folder
trap 'rm -f $folder/spillway.conf' EXIT
echo "create_main_cluster = false" >$folder/spillway.conf
apt-get -q update
DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install postgresql
