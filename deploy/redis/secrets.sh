#!/bin/sh
# Makes, once, a random password for each role, the ACL file that Redis reads, and a token of the gateway, in the directory given, which it
# makes too; in a second directory, if given, what the monitoring profile needs: a token that may read alone, and Grafana's password.
# Secrets are files 0440 of group $EVALQ_GROUP (10001); the ACL file holds the passwords' SHA-256 alone.
set -eu

dir=$1
monitoring=${2:-}
group=${EVALQ_GROUP:-10001}
umask 027
mkdir -p "$dir" ${monitoring:+"$monitoring"}

random() {
    head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n'
}
# secret FILE LINE: the file with that line, if it is not there yet. LINE stays out of every argv: printf is the shell's own.
secret() {
    if [ ! -s "$1" ]; then
        printf '%s' "$2" >"$1.new"
        mv "$1.new" "$1"
    fi
    chgrp "$group" "$1"
    chmod 0440 "$1"
}

made=
for role in init producer worker logger gateway viewer admin; do
    [ -s "$dir/$role" ] || made=1
    secret "$dir/$role" "$(random)"
done
secret "$dir/gateway.tokens" "compose write $(random)
"
if [ -n "$monitoring" ]; then
    secret "$monitoring/metrics.token" "$(random)"
    secret "$monitoring/grafana.password" "$(random)"
    if ! grep -q '^prometheus ' "$dir/gateway.tokens"; then
        { cat "$dir/gateway.tokens" && printf 'prometheus read %s\n' "$(cat "$monitoring/metrics.token")"; } >"$dir/gateway.tokens.new"
        chgrp "$group" "$dir/gateway.tokens.new"
        chmod 0440 "$dir/gateway.tokens.new"
        mv "$dir/gateway.tokens.new" "$dir/gateway.tokens"
    fi
    chmod 0755 "$monitoring"
fi
# Files of earlier versions too, whose default user had Redis drop what functions wrote when it read its append-only file.
if [ -n "$made" ] || ! grep -q '^user default off .*+@all$' "$dir/users.acl" 2>/dev/null; then
    evalq admin acl --passwords "$dir" >"$dir/users.acl.new"
    chmod 0444 "$dir/users.acl.new"
    mv "$dir/users.acl.new" "$dir/users.acl"
fi
chmod 0755 "$dir"
# What the container engine has just made is root's and empty; a directory that somebody had before stays as it is.
for data in /scratch /results; do
    if [ -d "$data" ] && [ "$(stat -c %u "$data")" = 0 ] && [ -z "$(ls -A "$data")" ]; then
        chown 10001:10001 "$data"
    fi
done
