--[[
release: gives an unfinished attempt back (drained, preempted). The job returns to its place, uncharged.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job or shard
ARGV[2] token  of the attempt

Returns "queued", or "stale". A job that was cancelled meanwhile ends as cancelled; the answer is "queued" too.
Holds   place and attempts are as before the claim.
Cost    O(log n).
--]]
verb('release', 'drain', function(args)
    args_exactly(args, 2, 'id token')
    if not Job.parse(args[1]) then
        refuse('\'' .. args[1]:sub(1, 60) .. '\' is no job id')
    end
    local job, found = Job.held_by(args[1], args[2])
    if not job then
        return found and Job.repeated_word(found, args[2], 'release') or 'stale'
    end
    if job.cancel and job.cancel ~= '' then
        Job.finish(job, 'cancelled', job.cancel, 'release queued')
        return 'queued'
    end
    Job.queue(job, { 'attempts', math.max(job.attempts - 1, 0), 'token', '', 'last', Job.last_word(job, 'release queued'),
        'suspect', '' })
    if not job.shard and job.merge ~= '1' and call('HGET', PREFIX .. 'flow:' .. job.flow, 'policy') == 'backfill' then
        Backfill.note(job.flow, job.class, job.priority, tonumber(job.place))
    end
    return 'queued'
end)
