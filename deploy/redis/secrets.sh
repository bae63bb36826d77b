#!/bin/sh
# Makes, once, a random password for each role, the ACL file that Redis reads, and a token of the gateway, in the directory given.
# Passwords are files 0440 of group 10001; the ACL file holds their SHA-256 alone.
set -eu

dir=$1
umask 027
made=
for role in init producer worker logger gateway viewer admin; do
    if [ ! -s "$dir/$role" ]; then
        head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$dir/$role.new"
        mv "$dir/$role.new" "$dir/$role"
        made=1
    fi
    chgrp 10001 "$dir/$role"
    chmod 0440 "$dir/$role"
done
if [ ! -s "$dir/gateway.tokens" ]; then
    printf 'compose write %s\n' "$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')" >"$dir/gateway.tokens.new"
    mv "$dir/gateway.tokens.new" "$dir/gateway.tokens"
fi
chgrp 10001 "$dir/gateway.tokens"
chmod 0440 "$dir/gateway.tokens"
if [ -n "$made" ] || [ ! -s "$dir/users.acl" ]; then
    evalq admin acl --passwords "$dir" >"$dir/users.acl.new"
    chmod 0444 "$dir/users.acl.new"
    mv "$dir/users.acl.new" "$dir/users.acl"
fi
chmod 0755 "$dir"
for data in /scratch /results; do
    [ ! -d "$data" ] || chown 10001:10001 "$data"
done
