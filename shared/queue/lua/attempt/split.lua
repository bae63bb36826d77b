--[[
split: the claimed job becomes shards, each claimed like a job by any worker; this attempt ends uncharged.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job
ARGV[2] token  of the attempt
ARGV[3] n      2 to 1024

Returns "ok" or "stale".
Holds   a job that was cancelled meanwhile ends so: "stale". The parent is running, without a lease, until its last part is in or one shard is dead.
Cost    O(n log N).
--]]
local function shards_make(j, n)
    local wait = P .. 'begun:' .. j.flow .. ':' .. j.class .. ':' .. j.priority
    local entries = {}
    for k = 0, n - 1 do
        call('HSET', P .. 'job:' .. j.id .. '@' .. k, 'state', 'queued', 'run', j.run, 'step', j.step, 'variant',
            j.variant, 'suite', j.suite, 'class', j.class, 'priority', j.priority, 'place', j.place, 'submitted',
            j.submitted or NOW, 'shards', n)
        entries[#entries + 1] = j.place
        entries[#entries + 1] = j.tag .. '@' .. k
        if #entries == 400 or k == n - 1 then
            call('ZADD', wait, unpack(entries))
            entries = {}
        end
    end
end

verb('split', 'drain', function(args)
    args_exactly(args, 3, 'id token n')
    local key = J.parse(args[1])
    if not key or key.shard then
        refuse('\'' .. args[1]:sub(1, 60) .. '\' is no job that can be split')
    end
    local n = integer_arg(args, 3, 2, 1024, 'n')
    local j, found = J.hold(args[1], args[2])
    if not j then
        return found and J.repeated(found, args[2], 'split') and 'ok' or 'stale'
    end
    if j.cancel and j.cancel ~= '' then -- No shard hears of it: all would be evaluated.
        J.finish(j, 'cancelled', j.cancel, 'cancel')
        return 'stale'
    end
    if j.merge == '1' or j.shards then
        refuse('\'' .. args[1] .. '\' was split before')
    end
    call('UNLINK', P .. 'part:' .. j.id)
    shards_make(j, n)
    local attempts = math.max(j.attempts - 1, 0)
    J.place(j, 'sharded', nil, { 'shards', n, 'attempts', attempts, 'token', '', 'last', J.last(j, 'split ok') })
    F.wake(j.class)
    return 'ok'
end)
