#!/bin/sh
# Installs the apt packages that evalq needs, on Debian 12 and 13 and Ubuntu 24.04.
#   sh deploy/bootstrap.sh [build]   to build and run evalq
#   sh deploy/bootstrap.sh test      also to run its tests
#   sh deploy/bootstrap.sh peers     also to run its tests against Python frameworks
# If all packages are installed, it changes nothing and does not use sudo. It neither starts nor enables
# a service.
set -eu

mode=${1:-build}
packages="build-essential cmake ninja-build pkg-config libhiredis-dev libmsgpack-dev libyaml-dev
libjansson-dev libmicrohttpd-dev libcurl4-openssl-dev libssl-dev libxxhash-dev zlib1g-dev libopenblas0-pthread
redis-server redis-tools"
optional=
case $mode in
build) ;;
test | peers)
    packages="$packages libcmocka-dev python3 python3-numpy python3-venv python3-yaml iproute2 git openssl procps
util-linux file"
    # For tests/format.sh, the fuzzers and the model. Debian 13 does not have clang-14.
    optional="clang-14 clang-format-14 libclang-rt-14-dev spin"
    if [ "$mode" = peers ]; then
        packages="$packages python3-dev prometheus"
        optional="$optional chromium" # Ubuntu has only a package that installs a snap.
    fi
    ;;
*)
    echo "bootstrap: unknown mode '$mode', expected build, test or peers" >&2
    exit 2
    ;;
esac

# missing_of PACKAGE...: prints those that are not installed.
missing_of() {
    for package in "$@"; do
        state=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
        case $state in
        ii*) ;;
        *) printf ' %s' "$package" ;;
        esac
    done
}
# available_of PACKAGE...: prints those that this release has.
available_of() {
    for package in "$@"; do
        # apt-cache succeeds and prints nothing for a package that only other packages name.
        if [ -n "$(apt-cache show "$package" 2>/dev/null)" ]; then
            printf ' %s' "$package"
        fi
    done
}

# shellcheck disable=SC2046,SC2086 # The lists are to be split into words.
missing=$(missing_of $packages)
# shellcheck disable=SC2046,SC2086
if [ -z "$missing" ] && [ -z "$(available_of $(missing_of $optional))" ]; then
    echo "bootstrap: all packages for '$mode' are installed"
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "bootstrap: apt-get not found; install these by hand:$missing" >&2
    exit 1
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
    as_root=sudo
    if ! command -v sudo >/dev/null 2>&1; then
        echo "bootstrap: not root and sudo not found; as root, run: apt-get install$missing" >&2
        exit 1
    fi
fi

# Debian starts a service when it installs it. A policy file that exits with 101 prevents that.
policy=/usr/sbin/policy-rc.d
policy_ours=
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
    policy_ours=1
fi
cleanup() {
    if [ -n "$policy_ours" ]; then
        $as_root rm -f "$policy"
    fi
}
trap cleanup EXIT

$as_root apt-get update -q
# shellcheck disable=SC2046,SC2086
missing="$missing$(available_of $(missing_of $optional))"
echo "bootstrap: installing$missing"
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
for service in redis-server prometheus; do
    case "$missing " in
    *" $service "*)
        if command -v systemctl >/dev/null 2>&1; then
            $as_root systemctl disable --quiet "$service" || true
        fi
        ;;
    esac
done
echo "bootstrap: done"
