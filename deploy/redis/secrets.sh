#!/bin/sh
# Creates the secrets of a deployment, unless they exist:
#   secrets.sh DIRECTORY [MONITORING]
# DIRECTORY gets a random password for each role, the ACL file of Redis, and a token of the gateway.
# MONITORING gets what the monitoring profile needs: a token that can only read, and Grafana's password.
# The secrets have mode 0440 and group $EVALQ_GROUP (default 10001). The ACL file contains only the
# SHA-256 digests of the passwords.
set -eu

dir=$1
monitoring=${2:-}
group=${EVALQ_GROUP:-10001}
umask 027
mkdir -p "$dir" ${monitoring:+"$monitoring"}

random() {
    head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n'
}
# secret FILE LINE: writes LINE to FILE, unless FILE exists. LINE does not appear in the list of
# processes, because printf is a builtin of the shell.
secret() {
    if [ ! -s "$1" ]; then
        printf '%s' "$2" >"$1.new"
        mv "$1.new" "$1"
    fi
    chgrp "$group" "$1"
    chmod 0440 "$1"
}

created=
for role in init producer worker logger gateway viewer admin; do
    [ -s "$dir/$role" ] || created=1
    secret "$dir/$role" "$(random)"
done
secret "$dir/gateway.tokens" "compose write $(random)
"
if [ -n "$monitoring" ]; then
    secret "$monitoring/metrics.token" "$(random)"
    secret "$monitoring/grafana.password" "$(random)"
    if ! grep -q '^prometheus ' "$dir/gateway.tokens"; then
        {
            cat "$dir/gateway.tokens"
            printf 'prometheus read %s\n' "$(cat "$monitoring/metrics.token")"
        } >"$dir/gateway.tokens.new"
        chgrp "$group" "$dir/gateway.tokens.new"
        chmod 0440 "$dir/gateway.tokens.new"
        mv "$dir/gateway.tokens.new" "$dir/gateway.tokens"
    fi
    chmod 0755 "$monitoring"
fi
# The ACL file of an earlier version is replaced. In the first versions, its default user made Redis drop
# the writes of functions when Redis loaded its append-only file. In later ones, its gateway could not
# pause.
if [ -n "$created" ] || ! grep -q '^user default off .*+@all$' "$dir/users.acl" 2>/dev/null ||
    ! grep -q '^user gateway .*|evalq_v1_pause' "$dir/users.acl"; then
    evalq admin acl --passwords "$dir" >"$dir/users.acl.new"
    chmod 0444 "$dir/users.acl.new"
    mv "$dir/users.acl.new" "$dir/users.acl"
fi
chmod 0755 "$dir"
# A directory that the container engine has just created belongs to root and is empty. Other directories
# are not changed.
for data in /scratch /results; do
    if [ -d "$data" ] && [ "$(stat -c %u "$data")" = 0 ] && [ -z "$(ls -A "$data")" ]; then
        chown 10001:10001 "$data"
    fi
done
