#!/bin/sh
# What deploy/bootstrap.sh asks apt for, with stand-ins for all that it calls: what is lacking and the release has, and nothing that is
# installed, or that other packages merely name (apt-cache says nothing of those, and does not fail; apt-get would, or take one of them).
# And that a service which it installed is not left enabled.
#   sh tests/bootstrap.sh
set -eu
cd "$(dirname "$0")/.."
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

# stand_in NAME: its script comes from standard input.
stand_in() {
    { echo '#!/bin/sh' && cat; } >"$place/$1"
    chmod +x "$place/$1"
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
echo "\$*" >>"$place/called"
case \$1 in tee) cat ;; esac >/dev/null
SH
# asks MODE PACKAGES DISABLED: by apt's words and systemd's.
asks() {
    : >"$place/called"
    PATH=$place:$PATH sh deploy/bootstrap.sh "$1" >"$place/said"
    asked=$(sed -n 's/.*apt-get install .*--no-install-recommends //p' "$place/called")
    disabled=$(sed -n 's/^systemctl disable --quiet //p' "$place/called")
    if [ "$asked" != "$2" ] || [ "$disabled" != "$3" ]; then
        echo "bootstrap: $1 asked for '$asked' and disabled '$disabled', expected '$2' and '$3'" >&2
        exit 1
    fi
    echo "bootstrap: $1 asked for $asked"
}
asks test "ninja-build spin" ""
asks peers "ninja-build prometheus spin" prometheus

# Whoever calls a run.sh on a fresh machine gets what it needs.
for script in $(git ls-files 'tests/*run.sh'); do
    if ! grep -q 'deploy/bootstrap.sh' "$script"; then
        echo "bootstrap: $script installs nothing, expected a call of deploy/bootstrap.sh" >&2
        exit 1
    fi
done
