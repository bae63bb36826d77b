--[[
Keys: finds keys that have another type than evalq gives them, because somebody wrote them by hand. Redis' error does not name
the key, so it is searched after a call failed, and for `stats`.
--]]
-- Keys of the queue that every job needs, besides the ready sets.
local MOVING = { meta = 'hash', n = 'hash', class = 'hash', classes = 'hash', block = 'hash', delayed = 'zset', sharded = 'zset' }
-- Other keys of the queue. Most are made again by the function that needs them.
local OTHER = { idle = 'hash', cost = 'hash', leases = 'zset', flows = 'zset', runs = 'zset', suites = 'zset', workers = 'zset',
    sinks = 'zset', supersede = 'zset', ticketopen = 'zset', ticketended = 'zset', ['ended:done'] = 'zset',
    ['ended:dead'] = 'zset', ['ended:skipped'] = 'zset', ['ended:cancelled'] = 'zset', ['ended:bad'] = 'zset', unpark = 'set',
    loss = 'list', results = 'stream', bad = 'stream', samples = 'stream' }
-- Keys of one run, flow or job. Only that one is blocked.
local OF_RUN = { ['run:'] = 'hash', ['index:'] = 'list', ['runflows:'] = 'set', ['parked:'] = 'set', ['best:'] = 'hash' }
local OF_FLOW = { ['flow:'] = 'hash', ['open:'] = 'zset', ['openkeep:'] = 'zset', ['gens:'] = 'hash', ['ledger:'] = 'hash',
    ['taken:'] = 'zset' }
local OF_SUITE = { ['suite:'] = 'hash', ['offers:'] = 'zset' }
local OF_JOB = { ['job:'] = 'hash', ['msg:'] = 'string', ['res:'] = 'hash', ['log:'] = 'string', ['part:'] = 'hash' }
local LOOKED_AT = 64 -- How many arguments of a call are checked.

-- If the key exists with another type: its name, its type and the right type. An old ACL user may not call TYPE.
local function wrong(name, kind)
    local may, reply = pcall(call, 'TYPE', PREFIX .. name)
    local is = may and reply.ok or 'none'
    if is ~= 'none' and is ~= kind then
        return { name = name, is = is, kind = kind }
    end
    return nil
end

local function wrong_among(kinds, suffix)
    for name, kind in pairs(kinds) do
        local found = wrong(name .. suffix, kind)
        if found then
            return found
        end
    end
    return nil
end

-- The same for the ready sets of the classes 1 to most.
local function wrong_ready(most)
    for class = 1, most do
        for band = 0, 3 do
            local found = wrong('ready:' .. class .. ':' .. band, 'zset')
            if found then
                return found
            end
        end
    end
    return nil
end

-- The same for the sets in which jobs of the flow wait.
local function wrong_waiting(flow)
    for _, class in ipairs(Flow.suite_classes(match(flow, '[^/]+$'))) do
        for band = 0, 3 do
            local suffix = flow .. ':' .. class .. ':' .. band
            local found = wrong('wait:' .. suffix, 'zset') or wrong('begun:' .. suffix, 'zset')
            if found then
                return found
            end
        end
    end
    return nil
end

-- The same for the job, flow, run, suite or sink that a word names.
local function wrong_of(word)
    local key = Job.parse(word)
    local flow = key and key.flow or match(word, '^[^/]+/[^/]+/[^/]+$')
    if flow then
        return wrong_among(OF_RUN, match(flow, '^[^/]+')) or wrong_among(OF_SUITE, match(flow, '[^/]+$')) or
            wrong_among(OF_FLOW, flow) or wrong_waiting(flow) or key and wrong_among(OF_JOB, word)
    end
    return name_ok(word, 64) and (wrong_among(OF_RUN, word) or wrong_among(OF_SUITE, word) or wrong('sink:' .. word, 'hash'))
end

-- The same for a submit, whose arguments are run session step variant suite.
local function wrong_submitted(args, at)
    local run, variant, suite = args[at], args[at + 3], args[at + 4]
    if name_ok(run, 64) and integer_of(args[at + 2], 0, SPAN - 1) and name_ok(variant, 32) and name_ok(suite, 32) then
        return wrong_of(run .. '/' .. text_of(tonumber(args[at + 2])) .. '/' .. variant .. '/' .. suite)
    end
    return nil
end

local moving_found -- The result of moving(), once a call. False: there is no such key.

function Keys.begin()
    moving_found = nil
end

local function moving()
    if moving_found == nil then
        moving_found = wrong_among(MOVING, '') or wrong_ready(CLASSES_MAX) or false
    end
    return moving_found
end

-- The same for the job, flow or run that `about` or an argument names.
local function of_call(about)
    local found = about and wrong_of(about)
    for at = 1, found and 0 or math.min(#ARGS, LOOKED_AT) do
        found = wrong_of(ARGS[at]) or wrong_submitted(ARGS, at)
        if found then
            break
        end
    end
    return found
end

--[[
A sentence for an error about a key's type. If a key of the queue blocks a submit, the error allows a retry until somebody has
removed the key, so that no checkpoint is lost. A worker's call does not retry, because it would delay its other attempts.
--]]
function Keys.explain(text, about)
    local own = moving()
    local found = own or of_call(about)
    if not found then
        found = wrong_among(OTHER, '')
        own = found
    end
    if not found then
        return text
    end
    local again = own and (KIND == 'submit' or KIND == 'grow' or own.name == 'meta')
    return (again and 'EVQ_RETRY' or 'EVQ_CORRUPT') .. ' the key ' .. PREFIX .. found.name .. ' is a ' .. found.is ..
        ', not the ' ..
        found.kind .. ' that evalq keeps there: what needs it stands still until it is removed'
end

--[[
Whether the error is about a key that every job needs. Then no job is set aside for it.
--]]
function Keys.blameless(problem)
    return wrong_type(problem) and moving() and true or false
end

-- Calls action. An error about a key's type is ignored; `stats` names the key.
function Keys.tried(action, ...)
    local ok, problem = pcall(action, ...)
    if not ok and not wrong_type(problem) then
        error(problem, 0)
    end
    return ok and problem or nil
end

-- For `stats`: all keys of another type among those of the queue, its ready sets and the given runs.
function Keys.all_wrong(classes, runs)
    local list = {}
    for _, kinds in ipairs({ MOVING, OTHER }) do
        for name, kind in pairs(kinds) do
            list[#list + 1] = wrong(name, kind)
        end
    end
    list[#list + 1] = wrong_ready(classes)
    for _, run in ipairs(runs) do
        list[#list + 1] = wrong_among(OF_RUN, run)
    end
    return list
end
