--[[
audit: checks that the queue is consistent: every unfinished job is in exactly one place, and places and counters agree.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] cursor "" first, then what the slice before gave

Returns JSON {"cursor", "checked", "problems": [text...]}; cursor "" at the end. Counters are compared only when one slice
        held everything: between slices the queue moves.
Cost    some 500 keys a call; sets of more than 1,000 members are sampled at both ends.
--]]
local function note(audit, text)
    if #audit.problems < 100 then
        audit.problems[#audit.problems + 1] = View.printable(text)
    end
end

-- All places that hold the job.
local function places_of(job)
    local list = {}
    local suffix = job.flow .. ':' .. job.class .. ':' .. job.priority
    for _, set in ipairs({ 'wait:', 'begun:' }) do
        if call('ZSCORE', PREFIX .. set .. suffix, job.tag) then
            list[#list + 1] = set .. suffix
        end
    end
    for _, set in ipairs({ 'delayed', 'leases', 'sharded', 'ended:done', 'ended:dead', 'ended:skipped', 'ended:cancelled' }) do
        if call('ZSCORE', PREFIX .. set, job.id) then
            list[#list + 1] = set
        end
    end
    return list
end

local function expected_place(job)
    if job.state == 'queued' then
        return Job.wait_key(job):sub(#PREFIX + 1)
    elseif job.state == 'delayed' then
        return 'delayed'
    elseif job.state == 'running' then
        return (job.shards and not job.shard and job.merge ~= '1') and 'sharded' or 'leases'
    end
    return not job.shard and 'ended:' .. job.state or nil
end

local function check_waiting(audit, job)
    local suffix = job.class .. ':' .. job.priority
    local ready = call('ZSCORE', PREFIX .. 'ready:' .. suffix, job.flow)
    local parked = call('SISMEMBER', PREFIX .. 'parked:' .. job.run, suffix .. ':' .. job.flow) == 1
    if not ready and not parked then
        note(audit, job.id .. ': its flow is neither ready nor parked')
    end
end

local function check_parent(audit, job)
    local parts, shards = call('HLEN', PREFIX .. 'part:' .. job.id), tonumber(job.shards) or 0
    local merging = job.merge == '1'
    if merging ~= (parts == shards) then
        note(audit, job.id .. ': ' .. parts .. ' of ' .. shards .. ' parts and merge is ' .. tostring(job.merge))
    end
end

-- The counters of a run that are checked: its leases and its unfinished jobs.
local COUNTED = { 'active', 'n:queued', 'n:delayed', 'n:running' }

local function found(audit, run, field)
    local counts = audit.found[run] or {}
    audit.found[run] = counts
    counts[field] = (counts[field] or 0) + 1
end

local function check_job(audit, id)
    local job = Job.load(id)
    if not job then
        note(audit, id .. ': a job key that holds no job')
        return
    elseif job.state == 'bad' then
        return
    elseif not Job.is_sane(job) then
        note(audit, id .. ': state, class, priority or place is none')
        return
    end
    local places, expected = places_of(job), expected_place(job)
    if #places ~= (expected and 1 or 0) or places[1] ~= expected then
        note(audit, id .. ': is ' .. job.state .. ', stands in [' .. table.concat(places, ' ') .. '], belongs in ' ..
            tostring(expected))
    end
    if job.state == 'running' and expected == 'leases' and (not job.token or job.token == '') then
        note(audit, id .. ': runs without a token')
    elseif ENDED[job.state] and job.token and job.token ~= '' then
        note(audit, id .. ': has ended and keeps a token')
    end
    if job.state == 'queued' then
        check_waiting(audit, job)
    end
    if OPEN[job.state] and job.shards and not job.shard then
        check_parent(audit, job)
    end
    if not job.shard then
        local is_open = call('ZSCORE', Job.open_key(job), job.tag) ~= false
        if is_open ~= (OPEN[job.state] == true) then
            note(audit, id .. ': is ' .. job.state .. ' and ' .. (is_open and 'is' or 'is not') .. ' open in its flow')
        end
        if OPEN[job.state] and call('EXISTS', PREFIX .. 'msg:' .. id) == 0 then
            note(audit, id .. ': has no message')
        end
        local count = OPEN[job.state] and job.state .. ':' .. job.class or job.state
        audit.seen[count] = (audit.seen[count] or 0) + 1
        if OPEN[job.state] then
            found(audit, job.run, 'n:' .. job.state)
        end
    end
    if expected == 'leases' then
        audit.seen['active:' .. job.class] = (audit.seen['active:' .. job.class] or 0) + 1
        found(audit, job.run, 'active')
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

-- Checks that all members of a place are jobs in that state. check_job checks everything else.
local function check_members(audit, key, state)
    for _, id in ipairs(ends_of(key)) do
        local found = Job.parse(id) and call('HGET', PREFIX .. 'job:' .. id, 'state')
        if found ~= state then
            note(audit, key:sub(#PREFIX + 1) .. ' holds ' .. id .. ', which is ' .. tostring(found or 'no job'))
        end
    end
end

local function check_wait(audit, key, flow)
    for _, tag in ipairs(ends_of(key)) do
        local id = Job.id_of(flow, tag)
        if not id or call('HGET', PREFIX .. 'job:' .. id, 'state') ~= 'queued' then
            note(audit, key:sub(#PREFIX + 1) .. ' holds ' .. tag .. ', which is not queued')
        end
    end
end

local PLACES = { delayed = 'delayed', leases = 'running', sharded = 'running', ['ended:done'] = 'done',
    ['ended:dead'] = 'dead', ['ended:skipped'] = 'skipped', ['ended:cancelled'] = 'cancelled' }

-- Keys without jobs only need the right type. Asking for their size fails otherwise.
local SIZES = { results = 'XLEN', bad = 'XLEN', cost = 'HLEN', wake = 'ZCARD', workers = 'ZCARD' }

local function check_key(audit, name)
    local id = name:match('^job:(.+)$')
    if id then
        audit.checked = audit.checked + 1
        check_job(audit, id)
    elseif PLACES[name] then
        check_members(audit, PREFIX .. name, PLACES[name])
    elseif name:find('^wait:') or name:find('^begun:') then
        check_wait(audit, PREFIX .. name, name:match('^%a+:(.+):%d+:%d$') or '')
    elseif SIZES[name:match('^%a+')] then
        call(SIZES[name:match('^%a+')], PREFIX .. name)
    elseif name:find('^gpus:') then
        for i, text in ipairs(call('HVALS', PREFIX .. name)) do
            if i <= 256 and not View.is_gpu_lease(text) then
                note(audit, name .. ' holds a lease that is none')
            end
        end
    elseif name:find('^run:') then
        local run = name:sub(5)
        audit.runs[run], audit.found[run] = call('HMGET', PREFIX .. name, unpack(COUNTED)), audit.found[run] or {}
    end
end

local function check_counters(audit)
    local n = Results.map(call('HGETALL', PREFIX .. 'n'))
    local sum = (tonumber(n.forgotten) or 0) + (tonumber(n.bad) or 0)
    for field, count in pairs(n) do
        local state = field:match('^(%a+):%d+$')
        if OPEN[state] or state == 'active' then
            if tonumber(count) ~= (audit.seen[field] or 0) then
                note(audit, 'counter ' .. field .. ' is ' .. count .. ', found ' .. (audit.seen[field] or 0))
            end
        end
        if OPEN[state] or ENDED[field] then
            sum = sum + tonumber(count)
        end
    end
    for field, count in pairs(audit.seen) do
        if not ENDED[field] and not n[field] then
            note(audit, 'counter ' .. field .. ' is missing, found ' .. count)
        end
    end
    if sum ~= (tonumber(n.submitted) or 0) then
        note(audit, 'submitted is ' .. (n.submitted or '0') .. ', the states add up to ' .. text_of(sum))
    end
    for run, counts in pairs(audit.found) do
        for i, field in ipairs(COUNTED) do
            local count = audit.runs[run] and tonumber(audit.runs[run][i]) or 0
            if count ~= (counts[field] or 0) then
                note(audit, 'run ' .. run .. ': ' .. field .. ' is ' .. text_of(count) .. ', found ' .. text_of(counts[field] or 0))
            end
        end
    end
end

verb('audit', 'ro', function(args)
    args_exactly(args, 1, 'cursor')
    if args[1] ~= '' and not args[1]:find('^%d+$') then
        refuse('cursor must be "" or what the slice before gave')
    end
    local audit = { problems = {}, checked = 0, seen = {}, found = {}, runs = {} }
    local at, names, keys = args[1] ~= '' and args[1] or '0', {}, 0
    local pattern = PREFIX:gsub('[%[%]*?\\]', '\\%0') .. '*'
    repeat
        local page = call('SCAN', at, 'MATCH', pattern, 'COUNT', 500)
        at = page[1]
        for _, key in ipairs(page[2]) do
            if not names[key] then
                names[key] = true
                keys = keys + 1
                local ok, problem = pcall(check_key, audit, key:sub(#PREFIX + 1))
                if not ok then
                    note(audit, key .. ': ' .. error_text(problem))
                end
            end
        end
    until at == '0' or keys >= 500
    if at == '0' and args[1] == '' then
        check_counters(audit)
    end
    return View.json({ cursor = at == '0' and '' or at, checked = audit.checked, problems = View.array(audit.problems) })
end)
