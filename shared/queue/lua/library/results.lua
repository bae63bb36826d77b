--[[
Results: the stream of results, the index of each run, sinks, and trimming. An entry is removed only when every registered
sink has acknowledged it. If a sink is silent for days or the stream is past its cap, the loss is recorded as a range.
--]]

-- Fields of an entry that its writer cannot set.
local ENTRY_OWN = { job = true, task = true, run = true, step = true, variant = true, suite = true, state = true,
    reason = true, finished_ms = true, record = true }

-- Adds one entry to the stream: readable text and the record. extra: further fields, or nil.
function Results.add(job, task, state, reason, extra, record)
    if run_is_internal(job.run) then
        return
    end
    if not extra then
        Queue.repairing('results', call, 'XADD', PREFIX .. 'results', '*', 'job', job.id, 'task', task, 'run', job.run, 'step',
            job.step,
            'variant', job.variant, 'suite', job.suite, 'state', state, 'reason', reason, 'finished_ms', NOW_TEXT, 'record', record)
    else
        local fields = { 'job', job.id, 'task', task, 'run', job.run, 'step', job.step, 'variant', job.variant, 'suite', job.suite,
            'state', state, 'reason', reason }
        for i = 1, #extra - 1, 2 do
            if not ENTRY_OWN[extra[i]] then
                fields[#fields + 1] = extra[i]
                fields[#fields + 1] = extra[i + 1]
            end
        end
        local n = #fields
        fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4] = 'finished_ms', NOW_TEXT, 'record', record
        Queue.repairing('results', call, 'XADD', PREFIX .. 'results', '*', unpack(fields))
    end
end

-- The row in the run's index for a result.
function Results.index_row(id, task)
    return NOW_TEXT .. ' ' .. id .. '#' .. task
end

function Results.index(job, task)
    call('RPUSH', PREFIX .. 'index:' .. job.run, Results.index_row(job.id, task))
end

-- Anybody can write a long text into a hash. evalq writes at most this many bytes.
local function clipped(text)
    return text and (#text <= 64 and text or text:sub(1, 64)) or ''
end

-- The same bytes as cmsgpack.pack() of an integer, but faster.
local function integer_packed(number)
    if number >= 65536 or number < 0 then
        return cmsgpack.pack(number)
    elseif number < 128 then
        return char(number)
    elseif number < 256 then
        return char(204, number)
    end
    return char(205, floor(number / 256), number % 256)
end

-- The last end time and flow, and their bytes. Most calls have only one of each.
local ended_number, ended_packed, record_flow, record_run, record_suite

-- The record of how a job ended, with the field names of a result record. Packed by hand, because cmsgpack is slower.
function Results.end_record(job)
    local head, reason, worker, weights = TEXT_HEAD, clipped(job.reason), clipped(job.worker), clipped(job.weights)
    local ended = tonumber(job.ended)
    if ended ~= ended_number then
        ended_number, ended_packed = ended, '\171finished_ms' .. cmsgpack.pack(ended)
    end
    if job.flow ~= record_flow then
        record_flow, record_run = job.flow, '\164task\160\163run' .. head[#job.run] .. job.run .. '\164step'
        record_suite = '\167variant' .. head[#job.variant] .. job.variant .. '\165suite' .. head[#job.suite] .. job.suite ..
            '\165state'
    end
    -- The number of retries makes the ids of several ends differ. A job is done only once, so that needs no number.
    local retries = job.state ~= 'done' and Job.retries(job) or 0
    return (retries > 0 and '\142\167retries' .. integer_packed(retries) or '\141') .. '\167version\1\163job' .. head[#job.id] ..
        job.id .. record_run .. integer_packed(tonumber(job.step)) ..
        record_suite .. head[#job.state] .. job.state .. '\166reason' .. head[#reason] .. reason .. '\167attempt' ..
        integer_packed(job.attempts) .. '\166worker' .. head[#worker] .. worker .. '\174weights_digest' .. head[#weights] ..
        weights .. ended_packed
end

function Results.end_add(job)
    Results.add(job, '', job.state, job.reason or '', nil, Results.end_record(job))
end

function Results.publish_end(job)
    Results.end_add(job)
    Results.index(job, '')
end

--[[
Reads the result of a row of a run's index: its record, the server's ms of publication, id and task. Nil: retention removed
it, or the job was retried after this end. The later end has its own row.
--]]
function Results.indexed_record(row)
    local ms, id, task = row:match('^(%d+) ([^#]+)#(.*)$')
    if not id then
        return nil
    elseif task ~= '' then
        return call('HGET', PREFIX .. 'res:' .. id, task) or nil, ms, id, task
    end
    local job = Job.load(id)
    local values = job and call('HMGET', PREFIX .. 'job:' .. id, 'ended', 'reason')
    if not job or not ENDED[job.state] or values[1] ~= ms then
        return nil
    end
    job.ended, job.reason = values[1], values[2] or ''
    return Results.end_record(job), ms, id, task
end

-- Rows of a run's index are numbered from 0. Rows before `index_first` were removed with their jobs.
local function index_first(run)
    return tonumber(Keys.tried(call, 'HGET', PREFIX .. 'run:' .. run, 'index_first')) or 0
end

-- Returns at most count rows from the number cursor on, and the number of the next row.
function Results.index_rows(run, cursor, count)
    local first = index_first(run)
    local from = math.max(cursor - first, 0)
    local rows = call('LRANGE', PREFIX .. 'index:' .. run, from, from + count - 1)
    return rows, text_of(math.max(cursor, first + from + #rows))
end

-- Removes rows at the front of a run's index whose records do not exist any more, at most count. Returns how many.
function Results.index_trim(run, count)
    local rows = call('LRANGE', PREFIX .. 'index:' .. run, 0, count - 1)
    local gone = 0
    while rows[gone + 1] and not Results.indexed_record(rows[gone + 1]) do
        gone = gone + 1
    end
    if gone > 0 then
        call('LTRIM', PREFIX .. 'index:' .. run, gone, -1)
        call('HINCRBY', PREFIX .. 'run:' .. run, 'index_first', gone)
    end
    return gone
end

local function id_next(id)
    local ms, sequence = id:match('^(%d+)-(%d+)$')
    return ms .. '-' .. text_of(tonumber(sequence) + 1)
end

local function id_less(a, b)
    local a_ms, a_sequence = a:match('^(%d+)-(%d+)$')
    local b_ms, b_sequence = b:match('^(%d+)-(%d+)$')
    if a_ms ~= b_ms then
        return tonumber(a_ms) < tonumber(b_ms)
    end
    return tonumber(a_sequence) < tonumber(b_sequence)
end
Results.id_less = id_less

local function pairs_to_map(list)
    local map = {}
    for i = 1, #list - 1, 2 do
        map[list[i]] = list[i + 1]
    end
    return map
end
Results.map = pairs_to_map

-- For each registered sink: the lowest id that it still needs, and its group. A sink whose group is missing needs everything.
function Results.needs()
    local groups = {}
    if call('EXISTS', PREFIX .. 'results') == 1 then
        local ok, rows = pcall(call, 'XINFO', 'GROUPS', PREFIX .. 'results') -- A key of another type has no groups.
        for _, row in ipairs(ok and rows or {}) do
            local group = pairs_to_map(row)
            groups[group.name] = group
        end
    end
    local list = {}
    for _, sink in ipairs(call('ZRANGE', PREFIX .. 'sinks', 0, CLASSES_MAX - 1)) do
        local group, low = groups[sink], '0-0'
        if group then
            low = id_next(group['last-delivered-id'])
            if group.pending > 0 then
                low = call('XPENDING', PREFIX .. 'results', sink)[2] or low
            end
        end
        list[#list + 1] = { sink = sink, low = low, group = group,
            seen = tonumber(call('HGET', PREFIX .. 'sink:' .. sink, 'seen')) or 0 }
    end
    return list
end

-- Notes that the sink called, which ends its silence. ...: further fields of its hash.
function Results.sink_called(sink, ...)
    call('HSET', PREFIX .. 'sink:' .. sink, 'seen', NOW_TEXT, 'still', '0', 'looked', NOW_TEXT, ...)
end

--[[
How long the sink has been silent while others took results. Each check adds the time since the last check, at most an hour
(of seven days). So neither a clock that jumps nor weeks without any result make a sink silent.
--]]
local SILENT_LOOKS = 7 * 24

local function still_ms(sink)
    local values = call('HMGET', PREFIX .. 'sink:' .. sink, 'still', 'looked')
    local still, looked = tonumber(values[1]) or 0, tonumber(values[2]) or NOW
    local most = Queue.meta().sink_silent_ms / SILENT_LOOKS
    local passed = NOW - looked
    if values[2] and passed >= 0 and passed < most / 60 then
        return still -- Too little to be worth a write.
    end
    still = still + max(0, math.min(passed, most))
    call('HSET', PREFIX .. 'sink:' .. sink, 'still', number_text(still), 'looked', NOW_TEXT)
    return still
end

local function first_id()
    local entry = call('XRANGE', PREFIX .. 'results', '-', '+', 'COUNT', 1)[1]
    return entry and entry[1]
end

local function last_id()
    local entry = Queue.repairing('results', call, 'XREVRANGE', PREFIX .. 'results', '+', '-', 'COUNT', 1)[1]
    return entry and entry[1]
end

-- The row of `PREFIX loss` that a further loss of the sink extends: its index and content. Checks the newest rows.
local function loss_open(sink, why)
    for at = -1, -16, -1 do
        local row = call('LINDEX', PREFIX .. 'loss', at)
        local ok, loss = pcall(cjson.decode, row or '')
        if not row then
            return nil
        elseif ok and type(loss) == 'table' and loss.sink == sink and loss.why == why then
            return at, loss
        end
    end
    return nil
end

-- Records which sinks lose entries when everything below `to` is removed. Losses that follow each other are one range.
local function lose(needs, first, to, why)
    for _, need in ipairs(needs) do
        if id_less(need.low, to) then
            local from = id_less(need.low, first) and first or need.low
            local at, loss = loss_open(need.sink, why)
            if at then
                loss.to, loss.at_ms = to, NOW
                call('LSET', PREFIX .. 'loss', at, cjson.encode(loss))
            else
                call('RPUSH', PREFIX .. 'loss',
                    cjson.encode({ sink = need.sink, from = from, to = to, at_ms = NOW, why = why }))
                call('LTRIM', PREFIX .. 'loss', -1000, -1)
            end
            Queue.bump('losses', 1)
        end
    end
end

-- The stream was lost: every sink may have lost all results until now.
function Queue.AFTER_REPAIR.results()
    lose(Results.needs(), '0-0', NOW_TEXT .. '-0', 'rubbish')
end

-- Removes entries that every sink has acknowledged. Does not wait for a sink that is silent for days, unless it has taken all.
function Results.trim()
    local needs, last, low = Results.needs(), last_id(), nil
    local silent = {}
    for _, need in ipairs(needs) do
        if last and not id_less(last, need.low) and still_ms(need.sink) >= Queue.meta().sink_silent_ms then
            silent[#silent + 1] = need
        elseif not low or id_less(need.low, low) then
            low = need.low
        end
    end
    local first = low and first_id()
    if first and id_less(first, low) then
        lose(silent, first, low, 'silent')
        if call('XLEN', PREFIX .. 'results') > 10000 then
            call('XTRIM', PREFIX .. 'results', 'MINID', '~', low, 'LIMIT', 10000)
        else
            call('XTRIM', PREFIX .. 'results', 'MINID', low)
        end
    end
end

-- Removes the oldest entries past the cap, even if a sink needs them.
function Results.cap()
    local over = Queue.repairing('results', call, 'XLEN', PREFIX .. 'results') - Queue.meta().results_max
    if over <= 0 then
        return
    end
    over = math.min(over, 1000)
    local entries = call('XRANGE', PREFIX .. 'results', '-', '+', 'COUNT', over + 1)
    local first, to = entries[1][1], entries[#entries][1]
    if #entries <= over then
        to = id_next(to)
    end
    lose(Results.needs(), first, to, 'cap')
    call('XTRIM', PREFIX .. 'results', 'MINID', to)
end

-- Reads the name of a sink, the first argument.
function Results.sink_arg(args)
    if not name_ok(args[1], 64) then
        refuse('sink must be 1 to 64 of [A-Za-z0-9._-]')
    end
    return args[1]
end
