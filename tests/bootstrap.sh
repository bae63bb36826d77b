#!/bin/sh
# Tests deploy/bootstrap.sh with stand-ins for the programs that it calls: sh tests/bootstrap.sh
# It must install exactly the packages that are missing and that the release has, and must disable the
# services that it installed. A package that only other packages name must not be installed: apt-cache
# succeeds and prints nothing for it, and apt-get would fail or install another package.
set -eu
cd "$(dirname "$0")/.."
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

# stand_in NAME: creates the program NAME from a script on standard input.
stand_in() {
    { echo '#!/bin/sh' && cat; } >"$directory/$1"
    chmod +x "$directory/$1"
}
echo 'echo 1000' | stand_in id
stand_in apt-cache <<'SH'
case $2 in
spin) echo "Package: spin" ;;
clang-14 | chromium) ;;
*) exit 100 ;;
esac
SH
stand_in dpkg-query <<'SH'
for package in "$@"; do :; done
case $package in
ninja-build | spin | clang-14 | clang-format-14 | chromium | prometheus) ;;
*) printf 'ii ' ;;
esac
SH
echo 'exit 1' | stand_in apt-get
echo 'exit 1' | stand_in systemctl
stand_in sudo <<SH
echo "\$*" >>"$directory/called"
case \$1 in tee) cat ;; esac >/dev/null
SH
# check MODE PACKAGES DISABLED: what bootstrap.sh must install and disable in this mode.
check() {
    : >"$directory/called"
    PATH=$directory:$PATH sh deploy/bootstrap.sh "$1" >"$directory/output"
    installed=$(sed -n 's/.*apt-get install .*--no-install-recommends //p' "$directory/called")
    disabled=$(sed -n 's/^systemctl disable --quiet //p' "$directory/called")
    if [ "$installed" != "$2" ] || [ "$disabled" != "$3" ]; then
        echo "bootstrap: $1 installed '$installed' and disabled '$disabled', expected '$2' and '$3'" >&2
        exit 1
    fi
    echo "bootstrap: $1 installed $installed"
}
check test "ninja-build spin" ""
check peers "ninja-build prometheus spin" prometheus

# Each run.sh must work on a fresh machine, so it must install what it needs.
for script in $(git ls-files 'tests/*run.sh'); do
    if ! grep -q 'deploy/bootstrap.sh' "$script"; then
        echo "bootstrap: $script installs nothing, expected a call of deploy/bootstrap.sh" >&2
        exit 1
    fi
done
