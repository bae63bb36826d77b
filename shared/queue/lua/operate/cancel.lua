--[[
cancel: cancels a job.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job; a shard stands for its whole job
ARGV[2] reason "" or one sentence
ARGV[3] "unclaimed", or left out: leave a job alone that a worker has begun, and end any other as skipped

Returns the state afterwards: "cancelled"; with "unclaimed", "skipped"; "running" if the job is marked, so that the next
        heartbeat ends it; the state of a job that had ended; or "not_found".
Cost    O(log n); a split job's shards besides.
--]]
verb('cancel', 'drain', function(args)
    local unclaimed = #args == 3 and args[3] == 'unclaimed'
    if not unclaimed then
        args_exactly(args, 2, 'id reason')
    end
    local key = Job.parse(args[1])
    if not key then
        refuse('\'' .. args[1]:sub(1, 60) .. '\' is no job id')
    end
    local job = Job.load(key.parent or args[1])
    if not job or not Job.is_sane(job) then
        return 'not_found'
    end
    if ENDED[job.state] then
        return job.state
    end
    if unclaimed and job.state == 'running' then
        return 'running'
    end
    local reason = args[2] ~= '' and short_text(args[2]) or 'cancelled by hand'
    return Job.cancel(job, unclaimed and 'skipped' or 'cancelled', reason)
end)
