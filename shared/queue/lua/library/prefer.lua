--[[
Prefer: a worker names jobs that it would like to get next, because its model server has loaded their checkpoint. A claim
takes such a job out of turn, as long as its run is then at most PREFER_SECONDS ahead of the run whose turn it is. The run
pays for the job as for any other, so the other runs catch up. Bands stay strict.
--]]
local PREFER_SECONDS = 600 -- In virtual time: seconds of evaluation by a run of weight 100.
local PREFER_MAX = 64

-- Reads the arguments nprefer id..., which begin at args[at]. They may be missing.
function Prefer.read(args, at)
    local ids = {}
    local n = #args < at and 0 or integer_arg(args, at, 0, PREFER_MAX, 'nprefer')
    if #args > at + n or (#args >= at and #args < at + n) then
        refuse('expected ' .. n .. ' preferred jobs, got ' .. (#args - at))
    end
    for i = 1, n do
        ids[i] = label_arg(args, at + i, 191, 'a preferred job')
    end
    return ids
end

local function is_open(claim, class)
    for i = 1, #claim.open do
        if claim.open[i] == class then
            return true
        end
    end
    return false
end

-- The head of the job's flow, with the job's place. Nil: the job cannot be claimed in this band now, or not out of turn.
local function head_of(claim, id, band, fair)
    local job = Job.parse(id)
    local class = job and call('HGET', PREFIX .. 'job:' .. id, 'class')
    if not class or not is_open(claim, class) then
        return nil
    end
    local start = tonumber(call('ZSCORE', PREFIX .. 'ready:' .. class .. ':' .. SMALL[band], job.flow))
    local run = Flow.run(job.run, band)
    if not start or Flow.is_blocked(run) or max(run[VT_FIELD[band]], start) - fair.start > PREFER_SECONDS then
        return nil
    end
    local head = Claim.head(job.flow, job.run, job.variant, job.suite, class, band, run, start, math.huge)
    head.tag, head.preferred = job.tag, call('ZSCORE', head.wait, job.tag)
    head.policy, head.top = unpack(call('HMGET', PREFIX .. 'flow:' .. job.flow, 'policy', 'taken_top'))
    -- Under `latest`, the older steps that wait are about to be skipped.
    local next_one = head.policy ~= 'latest' or call('ZREVRANGE', head.wait, '0', '0')[1] == job.tag
    return head.preferred and next_one and head or nil
end

--[[
Takes the first preferred job that may go before the flow `fair`, whose turn it is. Returns its tag and place as pop()
of a claim does, and its flow's head as `head`. Nil: there is none.
--]]
function Prefer.pop(claim, band, fair)
    for _, id in ipairs(claim.prefer) do
        local ok, head = pcall(head_of, claim, id, band, fair) -- If it fails, a claim in turn sets the broken key aside.
        if ok and head then
            call('ZREM', head.wait, head.tag)
            if head.policy == 'backfill' then
                pcall(Backfill.note_taken, head.flow, head.class, head.band_text, tonumber(head.preferred),
                    tonumber(head.top) or -1)
            end
            claim.lines[head.ready] = nil
            return { { head.tag, head.preferred }, head = head }
        end
    end
    return nil
end
