#!/bin/sh
# Unpacks OpenStack from Debian packages into a folder of its own, and brings
# its databases to where the services can start. No script of a package is run:
# they care for a whole machine and take minutes, and the little of their work
# that a lab needs is done here. Nothing of the host changes: the mounts below
# are seen by this script's own namespace only.
# Usage: install.sh ROOT FILES 3>PROGRESS
set -eu
root=$1
files=$2
release=bookworm
keys=/usr/share/keyrings/debian-archive-keyring.gpg
mount --make-rprivate /
mount -t proc proc /proc

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $release" | head -n 1)
if [ -z "$mirror" ]; then
	echo "no source of packages for Debian $release: add one to /etc/apt and run apt-get update" >&2
	exit 1
fi

echo "1 of 3: OpenStack's packages" >&3
# An apt with a memory of its own; from the host it takes the mirror and the way
# to it. The list of packages is whole, so there is nothing to resolve.
apt="$root.apt"
mkdir -p "$apt/lists/partial" "$apt/debs"
: >"$apt/status"
echo "deb [signed-by=$keys] $mirror $release main" >"$apt/sources"
cat >"$apt/conf" <<-EOC
	Dir::Etc::Parts "/dev/null";
	Dir::Etc::SourceList "$apt/sources";
	Dir::Etc::SourceParts "/dev/null";
	Dir::State "$apt";
	Dir::State::Status "$apt/status";
	Dir::Cache "$apt";
	Acquire::Languages "none";
	Acquire::Retries "3";
	APT::Sandbox::User "root";
EOC
apt-config dump | grep -E '^Acquire::(http|https|ftp)::' >>"$apt/conf" || true
export APT_CONFIG="$apt/conf"
apt-get -q update
(cd "$apt/debs" && sed '/^#/d' "$files/packages" | xargs apt-get -q download)

echo "2 of 3: unpacking" >&3
mkdir -p "$root/usr"
for dir in bin sbin lib lib64; do
	mkdir "$root/usr/$dir"
	ln -s "usr/$dir" "$root/$dir"
done
find "$apt/debs" -name '*.deb' -print0 | xargs -0 -n 16 -P "$(nproc)" /bin/sh "$files/unpack.sh" "$root"
rm -rf "$apt"
mkdir -p "$root/proc" "$root/dev" "$root/run" "$root/tmp" "$root/root" \
	"$root/etc/lab" "$root/var/log/lab" "$root/var/lib/mysql"
chmod 1777 "$root/tmp"
cp "$files"/* "$root/etc/lab/"
cp "$files/lab.py" "$root/usr/lib/python3/dist-packages/nova/virt/lab.py"
ln -s mawk "$root/usr/bin/awk"
printf 'root:x:0:0:root:/root:/bin/bash\n' >"$root/etc/passwd"
printf 'root:x:0:\n' >"$root/etc/group"
printf '127.0.0.1 localhost lab\n' >"$root/etc/hosts"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
chroot "$root" ldconfig
# Once and in parallel; a few files are for another Python and nobody reads them.
chroot "$root" python3 -m compileall -q -j 0 /usr/lib/python3/dist-packages /usr/lib/python3.11 || true

echo "3 of 3: databases" >&3
chroot "$root" /bin/bash /etc/lab/setup.sh
