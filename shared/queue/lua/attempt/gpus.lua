--[[
gpus: leases GPUs of a machine to a worker. Renews those that it holds, takes free ones, and frees those that it does not name.

KEYS[1] prefix   "evalq:{queue}:"
ARGV[1] worker   id of the process
ARGV[2] boot     of the machine: a name that is new at each of its starts
ARGV[3] lease_ms 1 to 3600000
ARGV[4] want     0 to 64: how many GPUs it can use in all
ARGV[5] several  1 to 64: the fewest GPUs to take at once
ARGV[6] n        0 to 64 GPUs
ARGV[7...]       n times: uuid token; token "" for one that it does not hold

Returns a token for each GPU, or "" if the worker does not hold it.
Holds   a GPU has one holder. An overdue lease is marked. If it is not renewed for two thirds of a lease more, the GPU is
        free. Until another worker takes it, the old token stays valid.
Cost    O(n); the machine's hash has at most 256 fields.
--]]
local GPUS_MAX = 64
local GPUS_KEPT_MAX = 256

-- Parses a lease of the hash: HOLDER TOKEN LEASE_MS LOOK_MS SUSPECT.
local function gpu_read(text)
    local worker, token, lease, look, suspect = tostring(text or ''):match('^(%S+) (%d+) (%d+) (%d+) ([01])$')
    lease, look = integer_of(lease, 1, LEASE_MS_MAX), integer_of(look, 0, 9007199254740992)
    if not lease or not look then
        return nil
    end
    return { worker = worker, token = token, lease = lease, look = look, suspect = suspect == '1' }
end

function View.is_gpu_lease(text)
    return gpu_read(text) ~= nil
end

local function gpu_write(request, uuid, record)
    request.sets[#request.sets + 1] = uuid
    request.sets[#request.sets + 1] = record.worker .. ' ' .. record.token .. ' ' .. text_of(record.lease) .. ' ' ..
        text_of(record.look) .. ' ' ..
        (record.suspect and '1' or '0')
end

local function gpu_renew(request, uuid, token)
    gpu_write(request, uuid, { worker = request.worker, token = token, lease = request.lease, look = NOW + request.lease })
    request.answer[uuid] = token
    request.held = request.held + 1
end

-- Checks another worker's lease. True: it has expired.
local function gpu_over(request, uuid, record)
    if record.look > NOW + record.lease then -- A clock that was set back must not keep it for ever.
        record.look = NOW + record.lease
        gpu_write(request, uuid, record)
        return false
    elseif NOW < record.look then
        return false
    elseif record.suspect then
        return true
    end
    record.suspect, record.look = true, NOW + math.ceil(record.lease * 2 / 3)
    gpu_write(request, uuid, record)
    return false
end

local function gpus_look(request, list)
    for _, gpu in ipairs(list) do
        local record = request.known[gpu.uuid]
        if record and record.worker == request.worker and (gpu.token == '' or gpu.token == record.token) then
            gpu_renew(request, gpu.uuid, record.token) -- Without a token: the answer that gave it was lost.
        elseif gpu.token ~= '' and not record then
            gpu_renew(request, gpu.uuid, gpu.token) -- Redis forgot it, and nobody has it.
        elseif gpu.token == '' and (not record or gpu_over(request, gpu.uuid, record)) then
            request.free[#request.free + 1] = gpu.uuid
        end
    end
end

local function gpus_take(request, want, several)
    local reach = math.min(want, math.floor((request.held + #request.free) / several) * several)
    for _, uuid in ipairs(request.free) do
        if request.held >= reach then
            return
        end
        Queue.set_meta('token', Queue.meta().token + 1)
        gpu_renew(request, uuid, text_of(Queue.meta().token))
    end
end

local function gpus_read(args, n)
    local list, seen = {}, {}
    for i = 1, n do
        local uuid, token = args[5 + 2 * i], args[6 + 2 * i]
        if not label_ok(uuid, 64) or seen[uuid] or not (token == '' or token:find('^%d+$') and #token <= 16) then
            refuse('a uuid must be 1 to 64 printable bytes and named once, a token what a call before gave')
        end
        seen[uuid] = true
        list[i] = { uuid = uuid, token = token }
    end
    return list, seen
end

verb('gpus', 'drain', function(args)
    local worker = label_arg(args, 1, 64, 'worker')
    local key = PREFIX .. 'gpus:' .. label_arg(args, 2, 64, 'boot')
    local lease = integer_arg(args, 3, 1, LEASE_MS_MAX, 'lease_ms')
    local want = integer_arg(args, 4, 0, GPUS_MAX, 'want')
    local several = integer_arg(args, 5, 1, GPUS_MAX, 'several')
    local n = integer_arg(args, 6, 0, GPUS_MAX, 'n')
    args_exactly(args, 6 + 2 * n, 'worker boot lease_ms want several n, then n times uuid token')
    local list, named = gpus_read(args, n)
    local request = { worker = worker, lease = lease, known = {}, held = 0, free = {}, answer = {}, sets = {} }
    local fields, gone = call('HGETALL', key), {}
    if #fields / 2 + n > GPUS_KEPT_MAX then
        call('UNLINK', key) -- Lists that changed hundreds of times: those who live renew theirs.
        fields = {}
    end
    for i = 1, #fields, 2 do
        local record = gpu_read(fields[i + 1])
        request.known[fields[i]] = record
        if not record or (record.worker == worker and not named[fields[i]]) then
            gone[#gone + 1] = fields[i]
        end
    end
    gpus_look(request, list)
    gpus_take(request, want, several)
    if #gone > 0 then
        call('HDEL', key, unpack(gone))
    end
    if #request.sets > 0 then
        call('HSET', key, unpack(request.sets))
        call('PEXPIRE', key, DAY_MS)
    end
    local reply = {}
    for i, gpu in ipairs(list) do
        reply[i] = request.answer[gpu.uuid] or ''
    end
    return reply
end)
