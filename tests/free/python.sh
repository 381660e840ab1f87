#!/usr/bin/env bash
# Prints the path of a CPython 3.13 or later that was built without the GIL: FREE_PYTHON, python3.13t of the PATH, or the
# one in build/free. If there is none, builds it there from the source package of Debian trixie, which takes ten minutes.
# Fails with a message on standard error if that source cannot be downloaded.
set -euo pipefail
cd "$(dirname "$0")/../.."
place=$PWD/build/free

is_free() { "$1" -c 'import sys, sysconfig; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))' 2> /dev/null; }

for python in "${FREE_PYTHON:-}" "$(command -v python3.13t || true)" "$place/bin/python3.13t"; do
  if [ -n "$python" ] && is_free "$python"; then echo "$python"; exit; fi
done

# The archive that this machine uses already, with the suite trixie. Nothing of the machine's configuration is changed.
mkdir -p "$place/apt/lists/partial" "$place/source"
: > "$place/apt/sources.list"
. /etc/os-release
apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 2> /dev/null \
  | awk -v here="${VERSION_CODENAME:-}" '$2 == here {
      print "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " $1 " trixie main" }' \
  | sort --unique > "$place/apt/sources.list" || true
apt=(apt-get --quiet=2 -o "Dir::Etc::sourcelist=$place/apt/sources.list" -o Dir::Etc::sourceparts=-
  -o "Dir::State::lists=$place/apt/lists" -o "Dir::Cache::srcpkgcache=" -o "Dir::Cache::pkgcache=" -o APT::Sandbox::User=root)
cd "$place/source"
if ! { "${apt[@]}" update && "${apt[@]}" source --download-only python3.13; } >&2; then
  echo "There is no free-threaded Python here, and its source cannot be downloaded from Debian's archive." \
    "Install one, and name it: FREE_PYTHON=/path/to/python3.13t" >&2
  exit 1
fi
rm -rf Python-* && tar -xf python3.13_*.orig.tar.xz
cd Python-*/
echo "Building Python without the GIL in $place; the log is build.log there." >&2
{ ./configure --disable-gil --prefix="$place" && make -j"$(nproc)" && make install; } > "$place/build.log" 2>&1 \
  || { tail -20 "$place/build.log" >&2; exit 1; }
is_free "$place/bin/python3.13t"
rm -rf "$place/source" "$place/apt"
echo "$place/bin/python3.13t"
