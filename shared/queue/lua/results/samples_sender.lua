--[[
samples_sender: whether an attempt can still send pieces of samples files.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job
ARGV[2] token  of the attempt

Returns "holds" (it can), "ended" (it never can again) or "gone" (the job was removed, too).
Cost    O(1).
--]]
verb('samples_sender', 'ro', function(args)
    args_exactly(args, 2, 'id token')
    local job = Job.load(args[1])
    if not job then
        return 'gone'
    end
    return job.token and job.token ~= '' and job.token == args[2] and OPEN[job.state] and 'holds' or 'ended'
end)
