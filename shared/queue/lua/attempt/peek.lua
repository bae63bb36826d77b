--[[
peek: which job the next claim of these classes would get, as the queue stands. Nothing is held by it: another may take the
job, what falls due until the claim goes before it, and where the order is known only after something is put right there is
no answer.

KEYS[1] prefix    "evalq:{queue}:"
ARGV[1] nclasses  0 to 64
ARGV[2...] class  numbers of the classes that fit

Returns {"job", id, record, running}, or {"none"}; running: attempts of these classes, one of which will end and claim it.
Holds   nothing is written.
Cost    O(C) for each of the four bands; at most 32 flows looked at in each class.
--]]

-- As claim chooses: the least start of those flows whose run may be served, each no earlier than its run's.
local function peek_head(classes, band)
    local best
    for _, class in ipairs(classes) do
        local first
        local rows = call('ZRANGE', P .. 'ready:' .. class .. ':' .. band, 0, 4 * FEW - 1, 'WITHSCORES')
        for i = 1, #rows, 2 do
            local flow, start = rows[i], tonumber(rows[i + 1])
            if first and start > first.start then
                break
            end
            local run = F.run(flow:match('^[^/]+') or '', band)
            start = math.max(start, run[VT_FIELD[band]])
            if not F.blocked(run) and
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
    local begun = call('ZRANGE', P .. 'begun:' .. suffix, 0, 0)[1]
    if begun then
        return begun
    end
    local policy = call('HGET', P .. 'flow:' .. flow, 'policy')
    if policy == 'backfill' then
        return F.backfill.peek(flow, class, band)
    end
    return call(policy == 'latest' and 'ZREVRANGE' or 'ZRANGE', P .. 'wait:' .. suffix, 0, 0)[1]
end

-- The job behind a head; nil when a claim would not start it.
local function peek_job(h)
    local tag = peek_tag(h.flow, h.class, h.band)
    local id = tag and J.id_of(h.flow, tag)
    local j = id and J.load(id, FIELDS_CLAIM)
    if not j or j.state ~= 'queued' or not J.sane(j) or j.class ~= h.class or j.priority ~= tostring(h.band) or
        not V.due({ every = {} }, j) then
        return nil
    end
    local record = call('GET', P .. 'msg:' .. (j.parent or id))
    return record and { 'job', id, record }
end

local function peek_running(classes)
    local fields, running = {}, 0
    for i, class in ipairs(classes) do
        fields[i] = 'running:' .. class
    end
    for _, count in ipairs(call('HMGET', P .. 'n', unpack(fields))) do
        running = running + math.max(tonumber(count) or 0, 0)
    end
    return text_of(running)
end

local function peek(classes)
    local lowest_first = (Q.meta().served + 1) % 16 == 0
    local open = Q.meta().paused ~= 1 and V.classes_open(classes) or {}
    for i = 0, 3 do
        local h = peek_head(open, lowest_first and 3 - i or i)
        if h then
            local reply = peek_job(h)
            if reply then
                reply[4] = peek_running(open)
            end
            return reply
        end
    end
    return nil
end

verb('peek', 'ro', function(args)
    local ok, found = pcall(peek, V.classes_read(args, 1)) -- Rubbish in the queue is the claim's to set aside.
    return ok and found or { 'none' }
end)
