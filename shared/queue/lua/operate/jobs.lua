--[[
jobs: lists the jobs of one state, newest first, one page a call.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] state  one of the seven, or bad (what was set aside)
ARGV[2] run    "" for any
ARGV[3] cursor "" first, then what the page before gave
ARGV[4] count  1 to 1000

Returns JSON {"cursor", "jobs": [{"id", hash fields}...]}; cursor "" at the end. A key of another type has none: `stats` names it.
Cost    O(count + log n); with a run at most 2,000 looked at a call.
--]]
local function job_view(id)
    local ok, list = pcall(call, 'HGETALL', PREFIX .. 'job:' .. id)
    local view = ok and View.printable(Results.map(list)) or { state = 'bad', reason = 'its key holds something else' }
    view.id = id
    return view
end

-- Reads a page of sorted sets by rank. The cursor is "SET:OFFSET".
local function from_sets(sets, run, cursor, count)
    local at, offset = cursor:match('^(%d+):(%d+)$')
    at, offset = tonumber(at) or 1, tonumber(offset) or 0
    local list, looked = {}, 0
    while sets[at] and #list < count and looked < 2000 do
        local ids = Keys.tried(call, 'ZREVRANGE', PREFIX .. sets[at], offset, offset + 99) or {}
        for i, id in ipairs(ids) do
            looked = looked + 1
            offset = offset + 1
            if (run == '' or id:sub(1, #run + 1) == run .. '/') and not id:find('@') then
                list[#list + 1] = job_view(id)
            end
            if #list == count then
                break
            end
        end
        if #ids < 100 and #list < count then
            at, offset = at + 1, 0
        end
    end
    return list, sets[at] and (at .. ':' .. offset) or ''
end

-- Reads a page of queued jobs, flow by flow. The cursor is "FLOW:SET:OFFSET", all ranks.
local function queued(run, cursor, count)
    local flow_index, set_index, offset = cursor:match('^(%d+):(%d):(%d+)$')
    flow_index, set_index, offset = tonumber(flow_index) or 0, tonumber(set_index) or 1, tonumber(offset) or 0
    local list, looked = {}, 0
    local flow = (Keys.tried(call, 'ZREVRANGE', PREFIX .. 'flows', flow_index, flow_index) or {})[1]
    while flow and #list < count and looked < 2000 do
        local tags = {}
        if run == '' or flow:sub(1, #run + 1) == run .. '/' then
            tags = Keys.tried(call, 'ZREVRANGE', PREFIX .. (set_index == 1 and 'open:' or 'openkeep:') .. flow, offset,
                offset + count - #list - 1) or {}
        end
        for _, tag in ipairs(tags) do
            local view = job_view(Job.id_of(flow, tag) or tag)
            if view.state == 'queued' then
                list[#list + 1] = view
            end
        end
        looked = looked + #tags + 1
        if #tags > 0 then
            offset = offset + #tags
        elseif set_index == 1 then
            set_index, offset = 2, 0
        else
            flow_index, set_index, offset = flow_index + 1, 1, 0
            flow = call('ZREVRANGE', PREFIX .. 'flows', flow_index, flow_index)[1]
        end
    end
    return list, flow and (flow_index .. ':' .. set_index .. ':' .. offset) or ''
end

local function set_aside(cursor, count)
    local list, last = {}, nil
    local entries = Keys.tried(call, 'XREVRANGE', PREFIX .. 'bad', cursor == '' and '+' or '(' .. cursor, '-', 'COUNT', count)
    for _, entry in ipairs(entries or {}) do
        local view = View.printable(Results.map(entry[2]))
        view.entry = entry[1]
        view.at_ms = View.number(entry[1]:match('^%d+'))
        list[#list + 1] = view
        last = entry[1]
    end
    return list, #list == count and last or ''
end

verb('jobs', 'ro', function(args)
    args_exactly(args, 4, 'state run cursor count')
    local state, run, cursor = args[1], args[2], args[3]
    local count = integer_arg(args, 4, 1, 1000, 'count')
    if run ~= '' and not name_ok(run, 64) then
        refuse('run must be a name or ""')
    end
    local list, next_cursor
    if state == 'bad' then
        if cursor ~= '' and not cursor:find('^%d+%-%d+$') then
            refuse('cursor must be "" or what the page before gave')
        end
        list, next_cursor = set_aside(cursor, count)
    elseif state == 'queued' then
        list, next_cursor = queued(run, cursor, count)
    elseif state == 'delayed' then
        list, next_cursor = from_sets({ 'delayed' }, run, cursor, count)
    elseif state == 'running' then
        list, next_cursor = from_sets({ 'leases', 'sharded' }, run, cursor, count)
    elseif ENDED[state] then
        list, next_cursor = from_sets({ 'ended:' .. state }, run, cursor, count)
    else
        refuse('state must be queued, delayed, running, done, dead, skipped, cancelled or bad')
    end
    return View.json({ cursor = next_cursor, jobs = View.array(list) })
end)
