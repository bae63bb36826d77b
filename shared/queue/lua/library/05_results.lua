--[[
The stream of results, the index of each run, sinks, and trimming: nothing goes that a registered sink has not
acknowledged, unless that sink is silent for days or the stream is past its cap; then the loss is recorded as a range.
--]]

-- Fields that the entry gives itself, whatever its writer hands in.
local ENTRY_OWN = { job = true, task = true, run = true, step = true, variant = true, suite = true, state = true,
    reason = true, finished_ms = true, record = true }

-- One entry of the stream: text that people can read, and the record. extra: further fields, or nil.
function R.add(j, task, state, reason, extra, record)
    if run_is_internal(j.run) then
        return
    end
    if not extra then
        Q.mended('results', call, 'XADD', P .. 'results', '*', 'job', j.id, 'task', task, 'run', j.run, 'step', j.step,
            'variant', j.variant, 'suite', j.suite, 'state', state, 'reason', reason, 'finished_ms', NOW_TEXT, 'record', record)
    else
        local fields = { 'job', j.id, 'task', task, 'run', j.run, 'step', j.step, 'variant', j.variant, 'suite', j.suite,
            'state', state, 'reason', reason }
        for i = 1, #extra - 1, 2 do
            if not ENTRY_OWN[extra[i]] then
                fields[#fields + 1] = extra[i]
                fields[#fields + 1] = extra[i + 1]
            end
        end
        local n = #fields
        fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4] = 'finished_ms', NOW_TEXT, 'record', record
        Q.mended('results', call, 'XADD', P .. 'results', '*', unpack(fields))
    end
end

-- The row of the run's index that goes with it.
function R.row(id, task)
    return NOW_TEXT .. ' ' .. id .. '#' .. task
end

function R.index(j, task)
    call('RPUSH', P .. 'index:' .. j.run, R.row(j.id, task))
end

-- Anybody can write long rubbish into a hash; what evalq writes there is no longer than this.
local function clipped(text)
    return text and (#text <= 64 and text or text:sub(1, 64)) or ''
end

-- As cmsgpack.pack() writes an integer.
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

-- The last end and flow and their bytes: those of a whole call, mostly.
local ended_number, ended_packed, record_flow, record_run, record_suite

-- The record of how a job ended, with the field names of every result record: put together by hand, as cmsgpack would do it.
function R.end_record(j)
    local head, reason, worker, weights = TEXT_HEAD, clipped(j.reason), clipped(j.worker), clipped(j.weights)
    local ended = tonumber(j.ended)
    if ended ~= ended_number then
        ended_number, ended_packed = ended, '\171finished_ms' .. cmsgpack.pack(ended)
    end
    if j.flow ~= record_flow then
        record_flow, record_run = j.flow, '\164task\160\163run' .. head[#j.run] .. j.run .. '\164step'
        record_suite = '\167variant' .. head[#j.variant] .. j.variant .. '\165suite' .. head[#j.suite] .. j.suite .. '\165state'
    end
    -- Its retries make the ids of its ends differ; done is an end that comes once, and most: nothing is asked for it.
    local retries = j.state ~= 'done' and J.retries(j) or 0
    return (retries > 0 and '\142\167retries' .. integer_packed(retries) or '\141') .. '\167version\1\163job' .. head[#j.id] .. j.id .. record_run .. integer_packed(tonumber(j.step)) ..
        record_suite .. head[#j.state] .. j.state .. '\166reason' .. head[#reason] .. reason .. '\167attempt' ..
        integer_packed(j.attempts) .. '\166worker' .. head[#worker] .. worker .. '\174weights_digest' .. head[#weights] ..
        weights .. ended_packed
end

function R.end_add(j)
    R.add(j, '', j.state, j.reason or '', nil, R.end_record(j))
end

function R.publish_end(j)
    R.end_add(j)
    R.index(j, '')
end

--[[
What a row of a run's index stands for: its record, server ms of publication, id and task; nil when retention removed
it, or when an end was wanted again since: its later end has a row of its own.
--]]
function R.indexed(row)
    local ms, id, task = row:match('^(%d+) ([^#]+)#(.*)$')
    if not id then
        return nil
    elseif task ~= '' then
        return call('HGET', P .. 'res:' .. id, task) or nil, ms, id, task
    end
    local j = J.load(id)
    local v = j and call('HMGET', P .. 'job:' .. id, 'ended', 'reason')
    if not j or not ENDED[j.state] or v[1] ~= ms then
        return nil
    end
    j.ended, j.reason = v[1], v[2] or ''
    return R.end_record(j), ms, id, task
end

-- The rows of a run's index are numbered from 0. Those before `index_first` were trimmed with their jobs.
local function index_first(run)
    return tonumber(Q.keys.tried(call, 'HGET', P .. 'run:' .. run, 'index_first')) or 0
end

-- At most count rows from number cursor on, and the number of the row after them.
function R.index_rows(run, cursor, count)
    local first = index_first(run)
    local from = math.max(cursor - first, 0)
    local rows = call('LRANGE', P .. 'index:' .. run, from, from + count - 1)
    return rows, text_of(math.max(cursor, first + from + #rows))
end

-- Removes rows at the front of a run's index whose records are gone, at most count of them. Returns how many.
function R.index_trim(run, count)
    local rows = call('LRANGE', P .. 'index:' .. run, 0, count - 1)
    local gone = 0
    while rows[gone + 1] and not R.indexed(rows[gone + 1]) do
        gone = gone + 1
    end
    if gone > 0 then
        call('LTRIM', P .. 'index:' .. run, gone, -1)
        call('HINCRBY', P .. 'run:' .. run, 'index_first', gone)
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
R.id_less = id_less

local function pairs_to_map(list)
    local map = {}
    for i = 1, #list - 1, 2 do
        map[list[i]] = list[i + 1]
    end
    return map
end
R.map = pairs_to_map

-- Per registered sink: the lowest id that it still needs, and its record. Groups that are gone need everything.
function R.needs()
    local groups = {}
    if call('EXISTS', P .. 'results') == 1 then
        local ok, rows = pcall(call, 'XINFO', 'GROUPS', P .. 'results') -- Of another type it has none.
        for _, row in ipairs(ok and rows or {}) do
            local group = pairs_to_map(row)
            groups[group.name] = group
        end
    end
    local list = {}
    for _, sink in ipairs(call('ZRANGE', P .. 'sinks', 0, CLASSES_MAX - 1)) do
        local group, low = groups[sink], '0-0'
        if group then
            low = id_next(group['last-delivered-id'])
            if group.pending > 0 then
                low = call('XPENDING', P .. 'results', sink)[2] or low
            end
        end
        list[#list + 1] = { sink = sink, low = low, group = group,
            seen = tonumber(call('HGET', P .. 'sink:' .. sink, 'seen')) or 0 }
    end
    return list
end

-- The sink called: what passed before is no silence. ...: further fields of its hash.
function R.heard(sink, ...)
    call('HSET', P .. 'sink:' .. sink, 'seen', NOW_TEXT, 'still', '0', 'looked', NOW_TEXT, ...)
end

--[[
How long others took results while the sink did not call. Each look adds what passed since the one before, an hour (of
seven days) at most: neither a clock that jumps nor weeks in which nothing was published make a sink silent, though another
tries all the time to get rid of what it has.
--]]
local SILENT_LOOKS = 7 * 24

local function still_ms(sink)
    local v = call('HMGET', P .. 'sink:' .. sink, 'still', 'looked')
    local still, looked = tonumber(v[1]) or 0, tonumber(v[2]) or NOW
    local most = Q.meta().sink_silent_ms / SILENT_LOOKS
    local passed = NOW - looked
    if v[2] and passed >= 0 and passed < most / 60 then
        return still -- Too little to be written with every call.
    end
    still = still + max(0, math.min(passed, most))
    call('HSET', P .. 'sink:' .. sink, 'still', number_text(still), 'looked', NOW_TEXT)
    return still
end

local function first_id()
    local entry = call('XRANGE', P .. 'results', '-', '+', 'COUNT', 1)[1]
    return entry and entry[1]
end

local function last_id()
    local entry = Q.mended('results', call, 'XREVRANGE', P .. 'results', '+', '-', 'COUNT', 1)[1]
    return entry and entry[1]
end

-- The row of `P loss` among the newest that a further loss of the sink belongs to.
local function loss_open(sink, why)
    for at = -1, -16, -1 do
        local row = call('LINDEX', P .. 'loss', at)
        local ok, loss = pcall(cjson.decode, row or '')
        if not row then
            return nil
        elseif ok and type(loss) == 'table' and loss.sink == sink and loss.why == why then
            return at, loss
        end
    end
    return nil
end

-- Notes which sinks lose what when everything below `to` goes; what is lost bit by bit is one range.
local function lose(needs, first, to, why)
    for _, need in ipairs(needs) do
        if id_less(need.low, to) then
            local from = id_less(need.low, first) and first or need.low
            local at, loss = loss_open(need.sink, why)
            if at then
                loss.to, loss.at_ms = to, NOW
                call('LSET', P .. 'loss', at, cjson.encode(loss))
            else
                call('RPUSH', P .. 'loss',
                    cjson.encode({ sink = need.sink, from = from, to = to, at_ms = NOW, why = why }))
                call('LTRIM', P .. 'loss', -1000, -1)
            end
            Q.bump('losses', 1)
        end
    end
end

-- What stood in the stream went with it: every sink may have lost all that was published until now.
function Q.AFTER_MENDING.results()
    lose(R.needs(), '0-0', NOW_TEXT .. '-0', 'rubbish')
end

-- Trims what every sink has acknowledged; sinks silent for days are not waited for. One that has taken all has nothing to say.
function R.trim()
    local needs, last, low = R.needs(), last_id(), nil
    local silent = {}
    for _, need in ipairs(needs) do
        if last and not id_less(last, need.low) and still_ms(need.sink) >= Q.meta().sink_silent_ms then
            silent[#silent + 1] = need
        elseif not low or id_less(need.low, low) then
            low = need.low
        end
    end
    local first = low and first_id()
    if first and id_less(first, low) then
        lose(silent, first, low, 'silent')
        if call('XLEN', P .. 'results') > 10000 then
            call('XTRIM', P .. 'results', 'MINID', '~', low, 'LIMIT', 10000)
        else
            call('XTRIM', P .. 'results', 'MINID', low)
        end
    end
end

-- Past the cap the oldest go, whoever needs them.
function R.cap()
    local over = Q.mended('results', call, 'XLEN', P .. 'results') - Q.meta().results_max
    if over <= 0 then
        return
    end
    over = math.min(over, 1000)
    local entries = call('XRANGE', P .. 'results', '-', '+', 'COUNT', over + 1)
    local first, to = entries[1][1], entries[#entries][1]
    if #entries <= over then
        to = id_next(to)
    end
    lose(R.needs(), first, to, 'cap')
    call('XTRIM', P .. 'results', 'MINID', to)
end
