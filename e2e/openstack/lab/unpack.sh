#!/bin/sh
# Unpacks packages without what nobody reads here.
# Usage: unpack.sh ROOT PACKAGE...
set -eu
root=$1
shift
for package; do
	dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink \
		--exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale \
		--exclude='./usr/lib/python3/dist-packages/*/tests'
done
