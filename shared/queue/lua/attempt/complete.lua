--[[
complete: ends an attempt that did its work. A shard also gives its part of the result.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job, or shard ID@K
ARGV[2] token  of the attempt
ARGV[3] part   "" when not a shard; else its encoded sums, at most 64 KiB

Returns "done", "duplicate" (this attempt completed before) or "stale" (another holds the job, or it has ended).
Holds   the part is stored by shard number. The last part queues the merge, once.
Cost    O(log n).
--]]

local function shard_done(job, part)
    local parent = Job.load(job.parent)
    if not parent or parent.state ~= 'running' or not parent.shards then
        return 'stale'
    end
    call('HSET', PREFIX .. 'part:' .. job.parent, text_of(job.shard), part)
    Job.finish(job, 'done', '', 'done')
    if call('HLEN', PREFIX .. 'part:' .. job.parent) >= tonumber(parent.shards) then
        parent.merge = '1'
        Job.queue(parent, { 'merge', '1' })
    end
    return 'done'
end

function Complete.run(parsed, token, part)
    local job, found = Job.held_by(parsed.id, token, FIELDS_END, parsed)
    if not job then
        if found and Job.repeated_word(found, token, 'done') then
            return 'duplicate'
        end
        return 'stale'
    end
    Flow.learn_cost(job.suite, job.started)
    if job.shard then
        return shard_done(job, part)
    end
    Job.finish(job, 'done', '', 'done')
    return 'done'
end

-- Checks id, token and part, which begin at args[at]. Returns the parsed id.
function Complete.read(args, at)
    if #(args[at + 2] or '') > 65536 then
        refuse('a part is at most 65536 bytes')
    end
    local key = Job.parse(args[at])
    if not key then
        refuse('\'' .. tostring(args[at]):sub(1, 60) .. '\' is no job id')
    end
    if key.shard and args[at + 2] == '' then
        refuse('a shard completes with its part')
    end
    return key
end

verb('complete', 'drain', function(args)
    args_exactly(args, 3, 'id token part')
    return Complete.run(Complete.read(args, 1), args[2], args[3])
end)
