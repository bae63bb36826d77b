--[[
republish: adds results of a run to the stream again, for sinks that never got them.

KEYS[1] prefix  "evalq:{queue}:"
ARGV[1] run     name
ARGV[2] cursor  0 first, then what was returned
ARGV[3] from_ms server ms: results published before are passed over,
ARGV[4] to_ms   and those published after

Returns {next cursor, results put in, more(0|1)}. Each result keeps its time and its id, so that a sink which has it
        skips it.
Cost    O(100).
--]]

-- The text fields of a task's entry, from its record.
local function metric_fields(record)
    local fields = {}
    local ok, result = pcall(cmsgpack.unpack, record)
    for _, metric in ipairs(ok and type(result) == 'table' and type(result.metrics) == 'table' and result.metrics or {}) do
        if type(metric) == 'table' and type(metric.name) == 'string' and type(metric.value) == 'number' then
            fields[#fields + 1] = 'metric:' .. metric.name:sub(1, 128)
            fields[#fields + 1] = string.format('%.17g', metric.value)
        end
    end
    return fields
end

local function put_again(row, from, to)
    local record, ms, id, task = Results.indexed_record(row)
    if not record or tonumber(ms) < from or tonumber(ms) > to then
        return 0
    end
    local job = Job.load(id) or Job.parse(id)
    local fields = metric_fields(record)
    for _, value in ipairs({ 'job', id, 'task', task, 'run', job.run, 'step', job.step, 'variant', job.variant, 'suite', job.suite,
        'state', task ~= '' and 'done' or job.state or '', 'finished_ms', ms, 'record', record }) do
        fields[#fields + 1] = value
    end
    Queue.repairing('results', call, 'XADD', PREFIX .. 'results', '*', unpack(fields))
    return 1
end

verb('republish', 'drain', function(args)
    args_exactly(args, 4, 'run cursor from_ms to_ms')
    if not name_ok(args[1], 64) then
        refuse('run must be 1 to 64 of [A-Za-z0-9._-]')
    end
    local cursor = integer_arg(args, 2, 0, 9007199254740992, 'cursor')
    local from = integer_arg(args, 3, 0, 9007199254740992, 'from_ms')
    local to = integer_arg(args, 4, 0, 9007199254740992, 'to_ms')
    local rows, next_cursor = Results.index_rows(args[1], cursor, SLICE)
    local count = 0
    for _, row in ipairs(rows) do
        local ok, put = pcall(put_again, row, from, to)
        count = count + (ok and put or 0)
    end
    return { next_cursor, text_of(count), #rows == SLICE and '1' or '0' }
end)
