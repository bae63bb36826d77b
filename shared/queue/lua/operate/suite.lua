--[[
suite: registers a worker's suite. Refuses another definition under the same name.

KEYS[1] prefix     "evalq:{queue}:"
ARGV[1] name       1 to 32 of [A-Za-z0-9._-]
ARGV[2] digest     of the canonical definition
ARGV[3] needs      canonical text
ARGV[4] shards     1 to 1024
ARGV[5] every      1 or more: only steps divisible by it are due
ARGV[6] definition JSON for people, at most 16 KiB
ARGV[7] where      "host:file"
ARGV[8] mode       register, or replace: an operator's word
ARGV[9] worker     id of the process, "" for an operator

Returns {"ok", class number} or {"conflict", other digest, other where}.
Cost    O(C).
--]]
verb('suite', 'drain', function(args)
    args_exactly(args, 9, 'name digest needs shards every definition where mode worker')
    local name, digest, needs, where, mode, worker = args[1], args[2], args[3], args[7], args[8], args[9]
    if not name_ok(name, 32) or #digest < 1 or #digest > 64 or digest:find('%W') then
        refuse('a suite has a name of 1 to 32 of [A-Za-z0-9._-] and a digest')
    end
    if #needs > 255 or needs:find('[%s%c*]') or #args[6] > 16384 or #where > 1024 then
        refuse('needs at most 255, definition at most 16384, where at most 1024 bytes')
    end
    if (mode ~= 'register' and mode ~= 'replace') or #worker > 64 or worker:find('[%s%c]') then
        refuse('mode must be register or replace')
    end
    local shards, every = integer_arg(args, 4, 1, 1024, 'shards'), integer_arg(args, 5, 1, SPAN - 1, 'every')
    local key = PREFIX .. 'suite:' .. name
    local old = call('HMGET', key, 'digest', 'where', 'needs')
    if old[1] and old[1] ~= digest and mode == 'register' then
        return { 'conflict', old[1], old[2] or '' }
    end
    local class = Flow.make_class(name, '*')
    if not class then
        refuse(Submit.CLASSES_FULL)
    end
    if old[3] ~= needs then
        Queue.set_meta('classes_version', Queue.meta().classes_version + 1)
    end
    call('HSET', key, 'digest', digest, 'needs', needs, 'shards', shards, 'every', every, 'definition', args[6],
        'where', where, 'class', class, 'at', NOW)
    call('ZADD', PREFIX .. 'suites', NOW, name)
    if every > 1 then
        call('HSET', PREFIX .. 'class', 'every:' .. name, every)
    else
        call('HDEL', PREFIX .. 'class', 'every:' .. name)
    end
    if worker ~= '' then
        call('ZADD', PREFIX .. 'offers:' .. name, NOW, worker)
        call('ZREMRANGEBYRANK', PREFIX .. 'offers:' .. name, 0, -1001)
    end
    Flow.wake(class)
    return { 'ok', class }
end)
