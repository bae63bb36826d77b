--[[
PlainEnds: a fast path of complete_many. An end is plain if its job is running, has nothing to do with shards, and its run has
neither cap nor pause, so that no waiting job may move. The hash and the stream entry of each job are written one by one. The
members of one set or list are written together. Every other end goes through Complete.run(), after the collected members
were written.
--]]
-- The line collects one command for one key: its words, values from the third on, and the end that each value belongs to.
local function line_of(ends, command, key)
    local line = ends.lines[key]
    if not line then
        line = { command, key, nil, nil, n = 0, at = {} }
        ends.lines[key], ends.lines[#ends.lines + 1] = line, line
    end
    return line
end

local function put(line, i, value)
    local n = line.n + 1
    line.n, line.at[n], line[n + 2] = n, i, value
end

-- The group of a flow's ends. job: one table, which is filled for each of its jobs in turn.
local function group_of(ends, job)
    local group = ends.groups[job.flow]
    if not group then
        group = { job = job, pattern = false, count = 0, open = line_of(ends, 'ZREM', Job.open_key(job)),
            index = line_of(ends, 'RPUSH', PREFIX .. 'index:' .. job.run) }
        ends.groups[job.flow], ends.groups[#ends.groups + 1] = group, group
    elseif not group.pattern then -- With a second job, the pattern saves parsing each id.
        group.pattern = '^' .. (job.run .. '/(%d+)/' .. job.variant .. '/' .. job.suite):gsub('[-.]', '%%%0') .. '$'
    end
    ends.last = group
    return group
end

-- Checks the arguments of end i and notes its job, or its group and step if the id has neither generation nor shard.
local function read(ends, i)
    local at, group = ends.from + 3 * (i - 1), ends.last
    local step = group and group.pattern and match(ends.args[at], group.pattern)
    if step and #step <= 13 and ends.args[at + 2] == '' then
        ends.jobs[i], ends.steps[i] = group, step
        return
    end
    local job = Complete.read(ends.args, at)
    if job.tag == job.step then
        ends.jobs[i], ends.steps[i] = group_of(ends, job), job.step
    else
        ends.jobs[i], ends.steps[i] = job, false
    end
end

-- Reads the n ends that begin at args[from]: id, token and part of each.
function PlainEnds.open(args, from, n)
    local ends = { args = args, from = from, jobs = {}, steps = {}, words = {}, groups = {}, last = false, lines = {},
        leases = false }
    ends.leases = line_of(ends, 'ZREM', PREFIX .. 'leases')
    for i = 1, n do
        read(ends, i)
    end
    return ends
end

-- Writes the end if it is plain, except for what is collected. Returns whether it is.
local function take(ends, i, group)
    local job, at = group.job, ends.from + 3 * (i - 1)
    local id, token = ends.args[at], ends.args[at + 1]
    if not Flow.is_unlimited(job.run) then
        return false
    end
    local key = PREFIX .. 'job:' .. id
    local values = call('HMGET', key, 'state', 'token', 'class', 'shards', 'keep', 'attempts', 'started', 'worker', 'weights')
    if values[1] ~= 'running' or token == '' or values[2] ~= token or values[4] or values[5] or not integer_of(values[3], 1,
            9999) or
        group.count > 0 and values[3] ~= job.class then
        return false
    end
    job.id, job.key, job.step, job.token, job.class = id, key, ends.steps[i], token, values[3]
    job.attempts, job.worker, job.weights = SMALL_OF[values[6]] or tonumber(values[6]) or 0, values[8], values[9]
    Flow.learn_cost(job.suite, values[7])
    Job.write_end(job, 'done', '', token .. ' done')
    group.count = group.count + 1
    put(ends.leases, i, id)
    put(group.open, i, job.step)
    Queue.note_end('done', id)
    Results.end_add(job)
    put(group.index, i, Results.index_row(id, ''))
    return true
end

-- Handles end i and returns its answer.
function PlainEnds.one(ends, i)
    local job, at = ends.jobs[i], ends.from + 3 * (i - 1)
    if ends.steps[i] then
        if take(ends, i, job) then
            return 'done'
        end
        job = Job.parse(ends.args[at])
    end
    PlainEnds.write(ends)
    return Complete.run(job, ends.args[at + 1], ends.args[at + 2])
end

-- Writing the line failed: answers all its ends with the error.
local function tell(ends, line, problem)
    for k = 1, line.n do
        ends.words[line.at[k]] = 'error ' .. error_text(problem, ends.args[ends.from + 3 * (line.at[k] - 1)])
    end
end

local function count(group)
    local n = group.count
    group.count = 0
    Job.count(group.job, 'running', -n)
    Job.count(group.job, 'done', n)
    Job.active(group.job, -n) -- Last, because the suite's key may have another type.
end

-- Writes what was collected. If a key has another type, its ends are answered with the error.
function PlainEnds.write(ends)
    for _, group in ipairs(ends.groups) do
        local ok, problem = true, nil
        if group.count > 0 then
            ok, problem = pcall(count, group)
        end
        if not ok then
            tell(ends, group.open, problem)
        end
    end
    for _, line in ipairs(ends.lines) do
        local ok, problem = true, nil
        if line.n > 0 then
            ok, problem = pcall(call, unpack(line, 1, line.n + 2))
        end
        if not ok then
            tell(ends, line, problem)
        end
        line.n = 0
    end
end
