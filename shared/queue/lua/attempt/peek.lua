--[[
peek: tells which job the next claim of these classes would get now. It reserves nothing: another worker may take the job, and
a job that becomes due goes first. If the order is only known after a correction, there is no answer.

KEYS[1] prefix    "evalq:{queue}:"
ARGV[1] nclasses  0 to 64
ARGV[2...] class  numbers of the classes that fit

Returns {"job", id, record, running}, or {"none"}; running: attempts of these classes, one of which will end and claim it.
Holds   nothing is written.
Cost    O(C) for each of the four bands; at most 32 flows looked at in each class.
--]]

-- The head that a claim would choose: the lowest start among flows whose run is not blocked.
local function peek_head(classes, band)
    local best
    for _, class in ipairs(classes) do
        local first
        local rows = call('ZRANGE', PREFIX .. 'ready:' .. class .. ':' .. band, 0, 4 * FEW - 1, 'WITHSCORES')
        for i = 1, #rows, 2 do
            local flow, start = rows[i], tonumber(rows[i + 1])
            if first and start > first.start then
                break
            end
            local run = Flow.run(flow:match('^[^/]+') or '', band)
            start = math.max(start, run[VT_FIELD[band]])
            if not Flow.is_blocked(run) and
                (not first or start < first.start or (start == first.start and flow < first.flow)) then
                first = { flow = flow, start = start, class = class, band = band }
            end
        end
        if first and (not best or first.start < best.start) then
            best = first
        end
    end
    return best
end

local function peek_tag(flow, class, band)
    local suffix = flow .. ':' .. class .. ':' .. band
    local begun = call('ZRANGE', PREFIX .. 'begun:' .. suffix, 0, 0)[1]
    if begun then
        return begun
    end
    local policy = call('HGET', PREFIX .. 'flow:' .. flow, 'policy')
    if policy == 'backfill' then
        return Backfill.peek(flow, class, band)
    end
    return call(policy == 'latest' and 'ZREVRANGE' or 'ZRANGE', PREFIX .. 'wait:' .. suffix, 0, 0)[1]
end

-- The job of a head, or nil if a claim would not start it.
local function peek_job(head)
    local tag = peek_tag(head.flow, head.class, head.band)
    local id = tag and Job.id_of(head.flow, tag)
    local job = id and Job.load(id, FIELDS_CLAIM)
    if not job or job.state ~= 'queued' or not Job.is_sane(job) or job.class ~= head.class or job.priority ~= tostring(head.band) or
        not Claim.is_due({ every = {} }, job) then
        return nil
    end
    local record = call('GET', PREFIX .. 'msg:' .. (job.parent or id))
    return record and { 'job', id, record }
end

local function peek_running(classes)
    local fields, running = {}, 0
    for i, class in ipairs(classes) do
        fields[i] = 'running:' .. class
    end
    for _, count in ipairs(call('HMGET', PREFIX .. 'n', unpack(fields))) do
        running = running + math.max(tonumber(count) or 0, 0)
    end
    return text_of(running)
end

local function peek(classes)
    local lowest_first = (Queue.meta().served + 1) % 16 == 0
    local open = Queue.meta().paused ~= 1 and Claim.open_classes(classes) or {}
    for i = 0, 3 do
        local head = peek_head(open, lowest_first and 3 - i or i)
        if head then
            local reply = peek_job(head)
            if reply then
                reply[4] = peek_running(open)
            end
            return reply
        end
    end
    return nil
end

verb('peek', 'ro', function(args)
    local ok, found = pcall(peek, Claim.read_classes(args, 1)) -- Rubbish in the queue is the claim's to set aside.
    return ok and found or { 'none' }
end)
