--[[
heartbeat: reports that a worker and its attempts are alive.

KEYS[1] prefix      "evalq:{queue}:"
ARGV[1] worker      id of the process
ARGV[2] worker_json what people are shown of it, at most 8 KiB; "" leaves what was there
ARGV[3] lease_ms    1 to 3600000
ARGV[4] n           0 to 1024 attempts
ARGV[5...]          n times: id token done total status

Returns {now, classes_version, word...}, a word per attempt: ok; cancel (the job is cancelled now, stop it);
        stale (another holds it, or it has ended: stop it, publish nothing).
Holds   if a job was taken back and nobody claimed it since, a heartbeat with its token makes it running again, uncharged.
Cost    O(n log N); at most 8 looks, 8 promotions, one slice of postponed work.
--]]
local function beat(id, token, done, total, status, lease)
    local job, found = Job.held_by(id, token, FIELDS_BEAT)
    if not job then
        return found and Job.repeated_word(found, token, 'cancel') and 'cancel' or 'stale'
    end
    if job.cancel and job.cancel ~= '' then
        Job.finish(job, 'cancelled', job.cancel, 'cancel')
        return 'cancel'
    end
    local fields = { 'hb', (tonumber(job.hb) or 0) + 1, 'lease', lease }
    if job.suspect and job.suspect ~= '' then
        fields[#fields + 1] = 'suspect'
        fields[#fields + 1] = ''
    end
    if integer_of(done, 0, 9007199254740992) then
        fields[#fields + 1] = 'progress'
        fields[#fields + 1] = done
    end
    if integer_of(total, 0, 9007199254740992) then
        fields[#fields + 1] = 'total'
        fields[#fields + 1] = total
    end
    if status ~= '' then
        fields[#fields + 1] = 'status'
        fields[#fields + 1] = short_text(status)
    end
    call('HSET', PREFIX .. 'job:' .. id, unpack(fields))
    Queue.repairing('leases', call, 'ZADD', PREFIX .. 'leases', NOW + lease, id) -- Writes the lease again if the key was lost.
    return 'ok'
end

local function worker_note(worker, json, lease)
    local key = PREFIX .. 'worker:' .. worker
    local fields = { 'seen', NOW, 'lease', lease }
    if json ~= '' then
        fields[#fields + 1] = 'json'
        fields[#fields + 1] = json
    end
    Queue.repairing('worker:' .. worker, call, 'HSETNX', key, 'first', NOW)
    call('HSET', key, unpack(fields))
    call('PEXPIRE', key, DAY_MS)
    Queue.repairing('workers', call, 'ZADD', PREFIX .. 'workers', NOW, worker)
end

verb('heartbeat', 'drain', function(args)
    local worker = label_arg(args, 1, 64, 'worker')
    if #(args[2] or '') > 8192 then
        refuse('worker_json is at most 8192 bytes')
    end
    local lease = integer_arg(args, 3, 1, LEASE_MS_MAX, 'lease_ms')
    local n = integer_arg(args, 4, 0, 1024, 'n')
    args_exactly(args, 4 + 5 * n, 'worker json lease_ms n, then n times id token done total status')
    worker_note(worker, args[2], lease)
    local words = {}
    for i = 1, n do
        local at = 5 * i
        local ok, word = pcall(beat, args[at], args[at + 1], args[at + 2], args[at + 3], args[at + 4], lease)
        if not ok and Keys.blameless(word) then
            error(word, 0)
        elseif not ok then
            Job.set_aside(args[at], error_text(word, args[at]))
        end
        words[i] = ok and word or 'stale'
    end
    Sweep.leases_and_delays()
    Sweep.slow_work()
    local reply = { text_of(NOW), text_of(Queue.meta().classes_version) }
    for i = 1, n do
        reply[2 + i] = words[i]
    end
    return reply
end)
