--[[
release: an attempt is given back unfinished (drained, preempted): to its place, not charged.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job or shard
ARGV[2] token  of the attempt

Returns "queued", or "stale". A job marked meanwhile ends as cancelled; it is off the worker's hands all the same: "queued".
Holds   place and attempts are as before the claim.
Cost    O(log n).
--]]
verb('release', 'drain', function(args)
    args_exactly(args, 2, 'id token')
    if not J.parse(args[1]) then
        refuse('\'' .. args[1]:sub(1, 60) .. '\' is no job id')
    end
    local j, found = J.hold(args[1], args[2])
    if not j then
        return found and J.repeated(found, args[2], 'release') or 'stale'
    end
    if j.cancel and j.cancel ~= '' then
        J.finish(j, 'cancelled', j.cancel, 'release queued')
        return 'queued'
    end
    J.queue(j, { 'attempts', math.max(j.attempts - 1, 0), 'token', '', 'last', J.last(j, 'release queued'),
        'suspect', '' })
    if not j.shard and j.merge ~= '1' and call('HGET', P .. 'flow:' .. j.flow, 'policy') == 'backfill' then
        F.backfill.note(j.flow, j.class, j.priority, tonumber(j.place))
    end
    return 'queued'
end)
