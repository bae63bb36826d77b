--[[
View: what the functions that show the queue share: JSON, what live workers offer, and why a job waits.
--]]
local EMPTY_ARRAY = '@@no elements@@'

-- Redis' cjson writes an empty table as {}. View.array() marks a table that must become [].
function View.array(list)
    return #list > 0 and list or EMPTY_ARRAY
end

function View.number(text)
    return tonumber(text) or 0
end

-- JSON is UTF-8. If a text is not valid UTF-8, each byte beyond ASCII becomes a question mark.
local function utf8_text(text)
    if text:find('[\128-\255]') then
        local rest = text:gsub('[\194-\223][\128-\191]', ''):gsub('\224[\160-\191][\128-\191]', '')
            :gsub('\237[\128-\159][\128-\191]', ''):gsub('[\225-\236\238\239][\128-\191][\128-\191]', '')
            :gsub('\240[\144-\191][\128-\191][\128-\191]', '')
            :gsub('[\241-\243][\128-\191][\128-\191][\128-\191]', '')
            :gsub('\244[\128-\143][\128-\191][\128-\191]', '')
        if rest:find('[\128-\255]') then
            return (text:gsub('[\128-\255]', '?'))
        end
    end
    return text
end

-- Makes any value of a key valid in JSON, also one written by hand: no invalid UTF-8, no NUL, no NaN.
local function writable(value)
    if type(value) == 'string' then
        return utf8_text((value:gsub('%z', '?')))
    elseif type(value) == 'number' then
        return (value ~= value or value == math.huge or value == -math.huge) and tostring(value) or value
    elseif type(value) ~= 'table' then
        return value
    end
    local copy = {}
    for key, item in pairs(value) do
        copy[type(key) == 'string' and writable(key) or key] = writable(item)
    end
    return copy
end

function View.json(value)
    return (cjson.encode(writable(value)):gsub('"' .. EMPTY_ARRAY .. '"', '[]'))
end

-- A copy of a decoded msgpack or JSON value that cjson can write: printable text, no NaN, bounded depth.
function View.printable(value, depth)
    depth = depth or 0
    if type(value) == 'string' then
        return utf8_text((value:gsub('[%z\1-\8\11\12\14-\31\127]', '?'):sub(1, 4096)))
    elseif type(value) == 'number' then
        if value ~= value or value == math.huge or value == -math.huge then
            return tostring(value)
        end
        return value
    elseif type(value) == 'boolean' then
        return value
    elseif type(value) ~= 'table' or depth > 8 then
        return tostring(value)
    end
    local copy, length = {}, 0
    for key, item in pairs(value) do
        local is_index = type(key) == 'number'
        copy[is_index and key or View.printable(tostring(key))] = View.printable(item, depth + 1)
        length = length + (is_index and 1 or 0)
    end
    if length > 0 and length ~= #copy then
        return tostring(length) .. ' items'
    end
    return copy
end

function View.unpacked(bytes)
    local ok, value = pcall(cmsgpack.unpack, bytes)
    if not ok or type(value) ~= 'table' then
        return 'not readable as msgpack'
    end
    return View.printable(value)
end

local function worker_state(age, lease)
    if age <= lease then
        return 'alive'
    end
    return age <= 4 * lease and 'stale' or 'dead'
end

-- At most 256 workers, newest heartbeat first. A silent worker is listed for a day.
function View.workers()
    local list = {}
    local rows = Keys.tried(call, 'ZREVRANGE', PREFIX .. 'workers', 0, 255, 'WITHSCORES') or {}
    for i = 1, #rows, 2 do
        local values = Keys.tried(call, 'HMGET', PREFIX .. 'worker:' .. rows[i], 'json', 'lease', 'first') or {}
        local lease = tonumber(values[2]) or Queue.meta().lease_ms
        local age = math.max(NOW - tonumber(rows[i + 1]), 0)
        local ok, info = pcall(cjson.decode, values[1] or '{}')
        list[#list + 1] = { id = rows[i], heartbeat_age_ms = age, state = worker_state(age, lease),
            first_ms = View.number(values[3]), info = ok and type(info) == 'table' and View.printable(info) or {} }
    end
    return list
end

local function listed(list, name)
    for _, item in ipairs(type(list) == 'table' and list or {}) do
        if item == name or (type(item) == 'table' and item.name == name) then
            return true
        end
    end
    return false
end

-- Whether a live worker offers the suite, by its registration or by its own description.
function View.offered(suite, workers)
    for _, worker in ipairs(workers) do
        if worker.state == 'alive' and
            (listed(worker.info.suites, suite) or call('ZSCORE', PREFIX .. 'offers:' .. suite, worker.id)) then
            return true
        end
    end
    return false
end

local function largest(worker, field)
    local most = tonumber(worker.info[field]) or -1 -- -1: the worker does not say.
    for _, slot in ipairs(type(worker.info.slots) == 'table' and worker.info.slots or {}) do
        if type(slot) == 'table' then
            most = math.max(most, tonumber(slot[field]) or -1)
        end
    end
    return most
end

-- A sentence about the needs that no live worker meets, or nil.
function View.needs_unmet(needs, workers)
    local gpus, memory = tonumber(needs:match('gpus=(%d+)')) or 0, tonumber(needs:match('gpu_memory=(%d+)')) or 0
    local most_gpus, most_memory = -1, -1
    for _, worker in ipairs(workers) do
        if worker.state == 'alive' then
            most_gpus = math.max(most_gpus, largest(worker, 'gpus'))
            most_memory = math.max(most_memory, largest(worker, 'gpu_memory_bytes'))
        end
    end
    if most_gpus >= 0 and gpus > most_gpus then
        return 'needs ' .. gpus .. ' GPU' .. (gpus == 1 and '' or 's') .. ', largest worker has ' .. most_gpus
    end
    if most_memory >= 0 and memory > most_memory then
        return string.format('needs %.1f GiB of GPU memory, largest worker has %.1f', memory / 2 ^ 30, most_memory / 2 ^ 30)
    end
    for label in (needs:match('labels=([^,]*)') or ''):gmatch('[^+]+') do
        local found = false
        for _, worker in ipairs(workers) do
            found = found or (worker.state == 'alive' and listed(worker.info.labels, label))
        end
        if not found then
            return 'no worker has the label ' .. label
        end
    end
    return nil
end

function View.class_of(class)
    local suite, needs = (call('HGET', PREFIX .. 'classes', class) or ''):match('^(%S+) (%S*)$')
    if needs == '*' then
        needs = call('HGET', PREFIX .. 'suite:' .. suite, 'needs') or ''
    end
    return suite or '', needs or ''
end

-- Why all jobs of a class wait, or nil if they only wait for their turn.
function View.why_class_waits(class, suite, needs, workers)
    if Queue.meta().paused == 1 then
        return 'paused (queue)'
    end
    local block = call('HGET', PREFIX .. 'block', class)
    if block then
        return block == 'cap' and 'cap of suite reached' or 'paused (suite)'
    end
    if #workers == 0 or not View.offered(suite, workers) then
        return 'no worker offers suite ' .. suite
    end
    return View.needs_unmet(needs, workers)
end

local function seconds(ms)
    ms = math.max(ms, 0)
    return ms < 10000 and string.format('%.1f s', ms / 1000) or string.format('%.0f s', ms / 1000)
end

-- Why a job waits, and whether it is blocked: it waits for something other than its turn, its time or its end.
function View.why_it_waits(job, workers)
    if job.state == 'delayed' then
        local due = tonumber(call('ZSCORE', PREFIX .. 'delayed', job.id)) or NOW
        local retried = job.attempts > 0 or (job.last and job.last ~= '')
        local reason = retried and call('HGET', PREFIX .. 'job:' .. job.id, 'reason') or ''
        return (retried and 'retry in ' or 'due in ') .. seconds(due - NOW) .. (reason ~= '' and ': ' .. reason or '')
    elseif job.state == 'running' then
        if call('ZSCORE', PREFIX .. 'sharded', job.id) then
            return call('HLEN', PREFIX .. 'part:' .. job.id) .. ' of ' .. (job.shards or '?') .. ' shards are in'
        end
        return 'runs on ' .. (job.worker or '?')
    elseif job.state ~= 'queued' then
        return ''
    end
    local suite, needs = View.class_of(job.class)
    local reason = View.why_class_waits(job.class, suite, needs, workers)
    local run = Flow.run(job.run)
    if reason then
        return reason, true
    elseif run.paused then
        return 'paused (run)', true
    elseif Flow.is_blocked(run) then
        return 'cap of run reached', true
    end
    local policy = call('HGET', PREFIX .. 'flow:' .. job.flow, 'policy')
    local before = call('ZRANK', Job.wait_key(job), job.tag) or 0
    if policy == 'latest' and not job.shard and job.merge ~= '1' then
        before = call('ZREVRANK', Job.wait_key(job), job.tag) or 0
    end
    if before > 0 then
        return 'waiting behind ' .. before .. ' job' .. (before == 1 and '' or 's') .. ' of its flow'
    end
    local flows = call('ZRANK', PREFIX .. 'ready:' .. job.class .. ':' .. job.priority, job.flow) or 0
    return flows > 0 and ('waiting behind ' .. flows .. ' other flow' .. (flows == 1 and '' or 's')) or
        'next; waiting for a free slot'
end

-- What this queue is and what it runs on, as `info` returns it.
function View.info()
    local meta = Queue.meta()
    return { text_of(MAJOR), text_of(BUILD), meta.epoch, text_of(NOW), text_of(meta.lease_ms),
        text_of(meta.heartbeat_ms) }
end

-- How many jobs of a run are in each state, as `counts` returns it.
function View.counts(run)
    local fields = {}
    for i, state in ipairs(STATES) do
        fields[i] = 'n:' .. state
    end
    local counts = call('HMGET', PREFIX .. 'run:' .. run, unpack(fields))
    for i = 1, #STATES do
        counts[i] = text_of(tonumber(counts[i]) or 0)
    end
    return counts
end
