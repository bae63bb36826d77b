--[[
audit: is the queue whole? Every unfinished job is in exactly one place, places and counters agree.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] cursor "" first, then what the slice before gave

Returns JSON {"cursor", "checked", "problems": [text...]}; cursor "" at the end. Counters are compared only when one slice
        held everything: between slices the queue moves.
Cost    some 500 keys a call; sets of more than 1,000 members are sampled at both ends.
--]]
local function note(c, text)
    if #c.problems < 100 then
        c.problems[#c.problems + 1] = W.plain(text)
    end
end

-- Where a job stands, of all places where it could.
local function places_of(j)
    local list = {}
    local suffix = j.flow .. ':' .. j.class .. ':' .. j.priority
    for _, set in ipairs({ 'wait:', 'begun:' }) do
        if call('ZSCORE', P .. set .. suffix, j.tag) then
            list[#list + 1] = set .. suffix
        end
    end
    for _, set in ipairs({ 'delayed', 'leases', 'sharded', 'ended:done', 'ended:dead', 'ended:skipped', 'ended:cancelled' }) do
        if call('ZSCORE', P .. set, j.id) then
            list[#list + 1] = set
        end
    end
    return list
end

local function expected_place(j)
    if j.state == 'queued' then
        return J.wait_key(j):sub(#P + 1)
    elseif j.state == 'delayed' then
        return 'delayed'
    elseif j.state == 'running' then
        return (j.shards and not j.shard and j.merge ~= '1') and 'sharded' or 'leases'
    end
    return not j.shard and 'ended:' .. j.state or nil
end

local function check_waiting(c, j)
    local suffix = j.class .. ':' .. j.priority
    local ready = call('ZSCORE', P .. 'ready:' .. suffix, j.flow)
    local parked = call('SISMEMBER', P .. 'parked:' .. j.run, suffix .. ':' .. j.flow) == 1
    if not ready and not parked then
        note(c, j.id .. ': its flow is neither ready nor parked')
    end
end

local function check_parent(c, j)
    local parts, shards = call('HLEN', P .. 'part:' .. j.id), tonumber(j.shards) or 0
    local merging = j.merge == '1'
    if merging ~= (parts == shards) then
        note(c, j.id .. ': ' .. parts .. ' of ' .. shards .. ' parts and merge is ' .. tostring(j.merge))
    end
end

-- Of a run: its leases, and its jobs that have not ended, by the field that counts them.
local COUNTED = { 'active', 'n:queued', 'n:delayed', 'n:running' }

local function found(c, run, field)
    local counts = c.found[run] or {}
    c.found[run] = counts
    counts[field] = (counts[field] or 0) + 1
end

local function check_job(c, id)
    local j = J.load(id)
    if not j then
        note(c, id .. ': a job key that holds no job')
        return
    elseif j.state == 'bad' then
        return
    elseif not J.sane(j) then
        note(c, id .. ': state, class, priority or place is none')
        return
    end
    local places, expected = places_of(j), expected_place(j)
    if #places ~= (expected and 1 or 0) or places[1] ~= expected then
        note(c, id .. ': is ' .. j.state .. ', stands in [' .. table.concat(places, ' ') .. '], belongs in ' ..
            tostring(expected))
    end
    if j.state == 'running' and expected == 'leases' and (not j.token or j.token == '') then
        note(c, id .. ': runs without a token')
    elseif ENDED[j.state] and j.token and j.token ~= '' then
        note(c, id .. ': has ended and keeps a token')
    end
    if j.state == 'queued' then
        check_waiting(c, j)
    end
    if OPEN[j.state] and j.shards and not j.shard then
        check_parent(c, j)
    end
    if not j.shard then
        local is_open = call('ZSCORE', J.open_key(j), j.tag) ~= false
        if is_open ~= (OPEN[j.state] == true) then
            note(c, id .. ': is ' .. j.state .. ' and ' .. (is_open and 'is' or 'is not') .. ' open in its flow')
        end
        if OPEN[j.state] and call('EXISTS', P .. 'msg:' .. id) == 0 then
            note(c, id .. ': has no message')
        end
        local count = OPEN[j.state] and j.state .. ':' .. j.class or j.state
        c.seen[count] = (c.seen[count] or 0) + 1
        if OPEN[j.state] then
            found(c, j.run, 'n:' .. j.state)
        end
    end
    if expected == 'leases' then
        c.seen['active:' .. j.class] = (c.seen['active:' .. j.class] or 0) + 1
        found(c, j.run, 'active')
    end
end

local function ends_of(key)
    if call('ZCARD', key) <= 1000 then
        return call('ZRANGE', key, 0, -1)
    end
    local list = call('ZRANGE', key, 0, 499)
    for _, member in ipairs(call('ZREVRANGE', key, 0, 499)) do
        list[#list + 1] = member
    end
    return list
end

-- Members of a place must be jobs in that state; check_job finds the rest of what can be wrong.
local function check_members(c, key, state)
    for _, id in ipairs(ends_of(key)) do
        local found = J.parse(id) and call('HGET', P .. 'job:' .. id, 'state')
        if found ~= state then
            note(c, key:sub(#P + 1) .. ' holds ' .. id .. ', which is ' .. tostring(found or 'no job'))
        end
    end
end

local function check_wait(c, key, flow)
    for _, tag in ipairs(ends_of(key)) do
        local id = J.id_of(flow, tag)
        if not id or call('HGET', P .. 'job:' .. id, 'state') ~= 'queued' then
            note(c, key:sub(#P + 1) .. ' holds ' .. tag .. ', which is not queued')
        end
    end
end

local PLACES = { delayed = 'delayed', leases = 'running', sharded = 'running', ['ended:done'] = 'done',
    ['ended:dead'] = 'dead', ['ended:skipped'] = 'skipped', ['ended:cancelled'] = 'cancelled' }

-- Keys that hold no jobs need be of their type alone: what asks for their size fails otherwise.
local SIZES = { results = 'XLEN', bad = 'XLEN', cost = 'HLEN', wake = 'ZCARD', workers = 'ZCARD' }

local function check_key(c, name)
    local id = name:match('^job:(.+)$')
    if id then
        c.checked = c.checked + 1
        check_job(c, id)
    elseif PLACES[name] then
        check_members(c, P .. name, PLACES[name])
    elseif name:find('^wait:') or name:find('^begun:') then
        check_wait(c, P .. name, name:match('^%a+:(.+):%d+:%d$') or '')
    elseif SIZES[name:match('^%a+')] then
        call(SIZES[name:match('^%a+')], P .. name)
    elseif name:find('^gpus:') then
        for i, text in ipairs(call('HVALS', P .. name)) do
            if i <= 256 and not V.gpu_ok(text) then
                note(c, name .. ' holds a lease that is none')
            end
        end
    elseif name:find('^run:') then
        local run = name:sub(5)
        c.runs[run], c.found[run] = call('HMGET', P .. name, unpack(COUNTED)), c.found[run] or {}
    end
end

local function check_counters(c)
    local n = R.map(call('HGETALL', P .. 'n'))
    local sum = (tonumber(n.forgotten) or 0) + (tonumber(n.bad) or 0)
    for field, count in pairs(n) do
        local state = field:match('^(%a+):%d+$')
        if OPEN[state] or state == 'active' then
            if tonumber(count) ~= (c.seen[field] or 0) then
                note(c, 'counter ' .. field .. ' is ' .. count .. ', found ' .. (c.seen[field] or 0))
            end
        end
        if OPEN[state] or ENDED[field] then
            sum = sum + tonumber(count)
        end
    end
    for field, count in pairs(c.seen) do
        if not ENDED[field] and not n[field] then
            note(c, 'counter ' .. field .. ' is missing, found ' .. count)
        end
    end
    if sum ~= (tonumber(n.submitted) or 0) then
        note(c, 'submitted is ' .. (n.submitted or '0') .. ', the states add up to ' .. text_of(sum))
    end
    for run, counts in pairs(c.found) do
        for i, field in ipairs(COUNTED) do
            local count = c.runs[run] and tonumber(c.runs[run][i]) or 0
            if count ~= (counts[field] or 0) then
                note(c, 'run ' .. run .. ': ' .. field .. ' is ' .. text_of(count) .. ', found ' .. text_of(counts[field] or 0))
            end
        end
    end
end

verb('audit', 'ro', function(args)
    args_exactly(args, 1, 'cursor')
    if args[1] ~= '' and not args[1]:find('^%d+$') then
        refuse('cursor must be "" or what the slice before gave')
    end
    local c = { problems = {}, checked = 0, seen = {}, found = {}, runs = {} }
    local at, names, keys = args[1] ~= '' and args[1] or '0', {}, 0
    local pattern = P:gsub('[%[%]*?\\]', '\\%0') .. '*'
    repeat
        local page = call('SCAN', at, 'MATCH', pattern, 'COUNT', 500)
        at = page[1]
        for _, key in ipairs(page[2]) do
            if not names[key] then
                names[key] = true
                keys = keys + 1
                local ok, problem = pcall(check_key, c, key:sub(#P + 1))
                if not ok then
                    note(c, key .. ': ' .. error_text(problem))
                end
            end
        end
    until at == '0' or keys >= 500
    if at == '0' and args[1] == '' then
        check_counters(c)
    end
    return W.json({ cursor = at == '0' and '' or at, checked = c.checked, problems = W.array(c.problems) })
end)
