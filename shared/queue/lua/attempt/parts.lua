--[[
parts: returns the results of the shards of a job, for the attempt that merges them.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job
ARGV[2] token  of the merging attempt

Returns {"ok", part...} in shard order, or {"stale"}.
Cost    O(n).
--]]
verb('parts', 'ro', function(args)
    args_exactly(args, 2, 'id token')
    local job = Job.load(args[1])
    local n = job and tonumber(job.shards)
    if not job or args[2] == '' or job.token ~= args[2] or not OPEN[job.state] or not n or job.merge ~= '1' then
        return { 'stale' }
    end
    local reply = { 'ok' }
    for from = 0, math.min(n, 1024) - 1, SLICE do
        local numbers = {}
        for k = from, math.min(from + SLICE, n) - 1 do
            numbers[#numbers + 1] = text_of(k)
        end
        for i, part in ipairs(call('HMGET', PREFIX .. 'part:' .. job.id, unpack(numbers))) do
            reply[1 + from + i] = part or ''
        end
    end
    return reply
end)
