--[[
Plain ends: of attempts that are done, whose jobs are running, no shard and without shards, in a run without a cap or pause, so
that nothing that waits may move. A job's hash and its entry in the stream are written one by one; what leaves a set
or joins a list is gathered over the call. Any other end goes through V.complete(), after what was gathered is written.
--]]
V.ends = {}

-- What is gathered for one key: the command's words, its values from the third on, and the ends that each belongs to.
local function line_of(e, command, key)
    local line = e.lines[key]
    if not line then
        line = { command, key, nil, nil, n = 0, at = {} }
        e.lines[key], e.lines[#e.lines + 1] = line, line
    end
    return line
end

local function put(line, i, value)
    local n = line.n + 1
    line.n, line.at[n], line[n + 2] = n, i, value
end

-- The ends of one flow. job: the one table that stands for each of its jobs in turn.
local function group_of(e, job)
    local group = e.groups[job.flow]
    if not group then
        group = { job = job, pattern = false, count = 0, open = line_of(e, 'ZREM', J.open_key(job)),
            index = line_of(e, 'RPUSH', P .. 'index:' .. job.run) }
        e.groups[job.flow], e.groups[#e.groups + 1] = group, group
    elseif not group.pattern then -- There may be more: their ids are taken apart by it.
        group.pattern = '^' .. (job.run .. '/(%d+)/' .. job.variant .. '/' .. job.suite):gsub('[-.]', '%%%0') .. '$'
    end
    e.last = group
    return group
end

-- Checks the arguments of the call's end i, and notes its job; its group and step where it has neither generation nor shard.
local function read(e, i)
    local at, group = e.from + 3 * (i - 1), e.last
    local step = group and group.pattern and match(e.args[at], group.pattern)
    if step and #step <= 13 and e.args[at + 2] == '' then
        e.jobs[i], e.steps[i] = group, step
        return
    end
    local job = V.complete_read(e.args, at)
    if job.tag == job.step then
        e.jobs[i], e.steps[i] = group_of(e, job), job.step
    else
        e.jobs[i], e.steps[i] = job, false
    end
end

-- A call's n ends, each three arguments from args[from] on: id, token, part.
function V.ends.open(args, from, n)
    local e = { args = args, from = from, jobs = {}, steps = {}, words = {}, groups = {}, last = false, lines = {}, leases = false }
    e.leases = line_of(e, 'ZREM', P .. 'leases')
    for i = 1, n do
        read(e, i)
    end
    return e
end

-- Whether the end is plain: then it is written, but for what is gathered.
local function take(e, i, group)
    local job, at = group.job, e.from + 3 * (i - 1)
    local id, token = e.args[at], e.args[at + 1]
    if not F.run_free(job.run) then
        return false
    end
    local key = P .. 'job:' .. id
    local v = call('HMGET', key, 'state', 'token', 'class', 'shards', 'keep', 'attempts', 'started', 'worker', 'weights')
    if v[1] ~= 'running' or token == '' or v[2] ~= token or v[4] or v[5] or not integer_of(v[3], 1, 9999) or
        group.count > 0 and v[3] ~= job.class then
        return false
    end
    job.id, job.key, job.step, job.token, job.class = id, key, e.steps[i], token, v[3]
    job.attempts, job.worker, job.weights = SMALL_OF[v[6]] or tonumber(v[6]) or 0, v[8], v[9]
    F.cost_learn(job.suite, v[7])
    J.end_write(job, 'done', '', token .. ' done')
    group.count = group.count + 1
    put(e.leases, i, id)
    put(group.open, i, job.step)
    Q.ended('done', id)
    R.end_add(job)
    put(group.index, i, R.row(id, ''))
    return true
end

-- The word that answers the call's end i.
function V.ends.one(e, i)
    local job, at = e.jobs[i], e.from + 3 * (i - 1)
    if e.steps[i] then
        if take(e, i, job) then
            return 'done'
        end
        job = J.parse(e.args[at])
    end
    V.ends.write(e)
    return V.complete(job, e.args[at + 1], e.args[at + 2])
end

-- What was gathered in the line is not written, or not all that goes with it: its ends are answered so.
local function tell(e, line, problem)
    for k = 1, line.n do
        e.words[line.at[k]] = 'error ' .. error_text(problem, e.args[e.from + 3 * (line.at[k] - 1)])
    end
end

local function count(group)
    local n = group.count
    group.count = 0
    J.count(group.job, 'running', -n)
    J.count(group.job, 'done', n)
    J.active(group.job, -n) -- Last: it looks at the suite, which may be rubbish.
end

-- Writes what was gathered. The ends that needed a key of another type are answered so.
function V.ends.write(e)
    for _, group in ipairs(e.groups) do
        local ok, problem = true, nil
        if group.count > 0 then
            ok, problem = pcall(count, group)
        end
        if not ok then
            tell(e, group.open, problem)
        end
    end
    for _, line in ipairs(e.lines) do
        local ok, problem = true, nil
        if line.n > 0 then
            ok, problem = pcall(call, unpack(line, 1, line.n + 2))
        end
        if not ok then
            tell(e, line, problem)
        end
        line.n = 0
    end
end
