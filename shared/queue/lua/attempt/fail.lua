--[[
fail: ends an attempt that failed.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job or shard
ARGV[2] token  of the attempt
ARGV[3] kind   retry, crash, timeout (delayed, or dead when attempts are used up), fatal (dead), vanished, changed
               (skipped), incomplete (delayed, not charged, up to a bound)
ARGV[4] reason one sentence, cut at 64 bytes
ARGV[5] detail everything worth keeping, cut at 8 KiB
ARGV[6] worker id of the process

Returns {state, due_ms}: due_ms 0 unless delayed; or "stale".
Holds   a job that crashed on two workers runs alone next. If it crashes alone, it is dead.
Cost    O(log n).
--]]
local KINDS = { retry = true, crash = true, timeout = true, fatal = true, vanished = true, changed = true,
    incomplete = true }

-- Counts a crash. Returns whether it was the job's last attempt, and the fields to set.
local function crashed(job, worker)
    local values = call('HMGET', PREFIX .. 'job:' .. job.id, 'crashes', 'crashed_on', 'alone')
    local fields = { 'crashes', (tonumber(values[1]) or 0) + 1, 'crashed_on', short_text(worker) }
    if values[2] and values[2] ~= short_text(worker) then
        fields[#fields + 1] = 'alone'
        fields[#fields + 1] = '1'
    end
    return values[3] == '1', fields
end

local function delay(job, word, wait, fields)
    local due = NOW + wait
    for _, value in ipairs({ 'due', due, 'token', '', 'last', Job.last_word(job, word .. ' delayed ' .. text_of(wait)) }) do
        fields[#fields + 1] = value
    end
    Job.place(job, 'delayed', due, fields)
    return { 'delayed', text_of(wait) }
end

local function ended(job, state, reason, fields)
    Job.finish(job, state, reason, 'fail ' .. state .. ' 0', fields)
    return { state, '0' }
end

local function settle_failure(job, kind, reason, worker)
    local meta = Queue.meta()
    if job.cancel and job.cancel ~= '' then
        return ended(job, 'cancelled', job.cancel)
    end
    if kind == 'vanished' or kind == 'changed' then
        return ended(job, 'skipped', kind .. ': ' .. reason)
    end
    if kind == 'fatal' then
        return ended(job, 'dead', reason)
    end
    if kind == 'incomplete' then
        local times = (tonumber(call('HGET', PREFIX .. 'job:' .. job.id, 'incomplete')) or 0) + 1
        if times > meta.incomplete_max then
            return ended(job, 'dead', 'incomplete: ' .. reason)
        end
        return delay(job, 'fail', math.min(Job.backoff(job.id, math.min(times, 4), 1000), 30000), { 'incomplete', times,
            'attempts', math.max(job.attempts - 1, 0), 'reason', short_text('incomplete: ' .. reason) })
    end
    local final, fields, base = false, {}, 2000
    if kind == 'crash' then
        final, fields = crashed(job, worker)
        base = 250
    end
    if final or job.attempts >= meta.attempts_max then
        return ended(job, 'dead', kind .. ': ' .. reason, fields)
    end
    fields[#fields + 1] = 'reason'
    fields[#fields + 1] = short_text(kind .. ': ' .. reason)
    return delay(job, 'fail', Job.backoff(job.id, job.attempts, base), fields)
end

verb('fail', 'drain', function(args)
    args_exactly(args, 6, 'id token kind reason detail worker')
    if not KINDS[args[3]] then
        refuse('kind must be retry, fatal, crash, timeout, vanished, changed or incomplete')
    end
    if not Job.parse(args[1]) then
        refuse('\'' .. args[1]:sub(1, 60) .. '\' is no job id')
    end
    local job, found = Job.held_by(args[1], args[2])
    if not job then
        local state, wait = (found and Job.repeated_word(found, args[2], 'fail') or ''):match('^(%a+) (%d+)$')
        if state then
            return { state, wait }
        end
        return 'stale'
    end
    if args[5] ~= '' then
        call('SET', PREFIX .. 'log:' .. args[1], args[5]:sub(-8192))
    end
    return settle_failure(job, args[3], args[4], args[6])
end)
