#!/bin/sh
# Installs a small Debian with some packages into a folder of its own. Nothing
# of the host changes: the mounts below are seen by this script's own namespace
# only.
# Usage: install.sh ROOT FILES PACKAGE... 3>PROGRESS
set -eu
root=$1
files=$2
shift 2
release=bookworm
mount --make-rprivate /
mount -t proc proc /proc

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $release" | head -n 1)
if [ -z "$mirror" ]; then
	echo "no source of packages for Debian $release: add one to /etc/apt and run apt-get update" >&2
	exit 1
fi
proxy=$(apt-config shell p Acquire::http::Proxy)
eval "$proxy"
[ -z "${p:-}" ] || export http_proxy="$p"

# debootstrap is a script: without an installed one, a copy serves.
tool=debootstrap
if ! command -v "$tool" >/dev/null; then
	mkdir -p "$root.tool"
	(cd "$root.tool" && apt-get -q download debootstrap && dpkg-deb -x debootstrap_*.deb .)
	tool="$root.tool/usr/sbin/debootstrap"
	export DEBOOTSTRAP_DIR="$root.tool/usr/share/debootstrap"
fi
# What is thrown away at a power cut needs no care, and nobody reads manuals.
mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
cat >"$root/etc/dpkg/dpkg.cfg.d/lab" <<-EOF
	force-unsafe-io
	path-exclude=/usr/share/doc/*
	path-exclude=/usr/share/man/*
	path-exclude=/usr/share/locale/*
EOF
echo "a small Debian" >&3
"$tool" --variant=minbase "$release" "$root" "$mirror"
rm -rf "$root.tool"

mkdir -p "$root/etc/lab" "$root/var/log/lab"
cp "$files"/* "$root/etc/lab/"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # no service starts by itself
chmod 755 "$root/usr/sbin/policy-rc.d"
printf '127.0.0.1 localhost lab\n' >"$root/etc/hosts"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"

echo "its packages" >&3
chroot "$root" apt-get -q update
DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get -q -y --no-install-recommends install "$@"
chroot "$root" apt-get clean
