--[[
Keys of another type than evalq's, written by hand: what Redis says of one does not name it. It is looked for where a call has
failed of it, and for `stats`.
--]]
-- The queue's own: with these, and the ready sets, a job moves, whatever its run.
local MOVING = { meta = 'hash', n = 'hash', class = 'hash', classes = 'hash', block = 'hash', delayed = 'zset', sharded = 'zset' }
-- What else is the queue's own; most is made anew by whoever needs it.
local OTHER = { idle = 'hash', cost = 'hash', leases = 'zset', flows = 'zset', runs = 'zset', suites = 'zset', workers = 'zset',
    sinks = 'zset', supersede = 'zset', ticketopen = 'zset', ticketended = 'zset', ['ended:done'] = 'zset',
    ['ended:dead'] = 'zset', ['ended:skipped'] = 'zset', ['ended:cancelled'] = 'zset', ['ended:bad'] = 'zset', unpark = 'set',
    loss = 'list', results = 'stream', bad = 'stream' }
-- Those of one run, flow or job: only that one stands still.
local OF_RUN = { ['run:'] = 'hash', ['index:'] = 'list', ['runflows:'] = 'set', ['parked:'] = 'set', ['best:'] = 'hash' }
local OF_FLOW = { ['flow:'] = 'hash', ['open:'] = 'zset', ['openkeep:'] = 'zset', ['gens:'] = 'hash', ['ledger:'] = 'hash',
    ['taken:'] = 'zset' }
local OF_SUITE = { ['suite:'] = 'hash', ['offers:'] = 'zset' }
local OF_JOB = { ['job:'] = 'hash', ['msg:'] = 'string', ['res:'] = 'hash', ['log:'] = 'string', ['part:'] = 'hash' }
local LOOKED_AT = 64 -- Of a call's arguments.

-- Name, what it is and what it should be, where the key is there and of another type. Users of before may not ask.
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

-- The ready sets of classes up to most, which every claim of the class needs.
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

-- Where jobs of a flow wait, in the classes of its suite.
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

-- Of what a word names: a job or flow, else perhaps a run, suite or sink.
local function wrong_of(word)
    local key = Job.parse(word)
    local flow = key and key.flow or match(word, '^[^/]+/[^/]+/[^/]+$')
    if flow then
        return wrong_among(OF_RUN, match(flow, '^[^/]+')) or wrong_among(OF_SUITE, match(flow, '[^/]+$')) or
            wrong_among(OF_FLOW, flow) or wrong_waiting(flow) or key and wrong_among(OF_JOB, word)
    end
    return name_ok(word, 64) and (wrong_among(OF_RUN, word) or wrong_among(OF_SUITE, word) or wrong('sink:' .. word, 'hash'))
end

-- The arguments of a submit stand apart: run session step variant suite.
local function wrong_submitted(args, at)
    local run, variant, suite = args[at], args[at + 3], args[at + 4]
    if name_ok(run, 64) and integer_of(args[at + 2], 0, SPAN - 1) and name_ok(variant, 32) and name_ok(suite, 32) then
        return wrong_of(run .. '/' .. text_of(tonumber(args[at + 2])) .. '/' .. variant .. '/' .. suite)
    end
    return nil
end

local moving_found -- Looked for once a call; false: none.

function Keys.begin()
    moving_found = nil
end

local function moving()
    if moving_found == nil then
        moving_found = wrong_among(MOVING, '') or wrong_ready(CLASSES_MAX) or false
    end
    return moving_found
end

-- A key of the job, flow or run that about or the arguments name.
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
A sentence for an error of that kind. Where one of the queue's own keys keeps a submit out it may be repeated until somebody has
removed the key, so that no checkpoint is lost; a worker's word of one attempt must not keep those of the others waiting.
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
Whether an error is of a key that all jobs move with: then none is set aside for it.
--]]
function Keys.blameless(problem)
    return wrong_type(problem) and moving() and true or false
end

-- Does f; what fails of a key of another type is left for later, and `stats` names the key.
function Keys.tried(action, ...)
    local ok, problem = pcall(action, ...)
    if not ok and not wrong_type(problem) then
        error(problem, 0)
    end
    return ok and problem or nil
end

-- For `stats`: those of another type among the queue's own, the ready sets of its classes and the given runs.
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
