--[[
gpus: which GPUs of its machine a worker has for itself. Renews what it holds, takes what is free, frees what it does not name.

KEYS[1] prefix   "evalq:{queue}:"
ARGV[1] worker   id of the process
ARGV[2] boot     of the machine: a name that is new at each of its starts
ARGV[3] lease_ms 1 to 3600000
ARGV[4] want     0 to 64: how many it has use for in all
ARGV[5] several  1 to 64: it takes no fewer at once
ARGV[6] n        0 to 64 GPUs
ARGV[7...]       n times: uuid token; token "" for one that it does not hold

Returns a token per GPU, "" for one that is not the worker's: never was, or was taken by another since.
Holds   a GPU has one holder. Expiry as with jobs: overdue, it is marked; overdue and not renewed since, two thirds of its
        lease later, it is free. Until another takes it the old token stays good.
Cost    O(n); the machine's hash has at most 256 fields.
--]]
local GPUS_MAX = 64
local GPUS_KEPT_MAX = 256

-- A lease as it stands in the hash: HOLDER TOKEN LEASE_MS LOOK_MS SUSPECT.
local function gpu_read(text)
    local worker, token, lease, look, suspect = tostring(text or ''):match('^(%S+) (%d+) (%d+) (%d+) ([01])$')
    lease, look = integer_of(lease, 1, LEASE_MS_MAX), integer_of(look, 0, 9007199254740992)
    if not lease or not look then
        return nil
    end
    return { worker = worker, token = token, lease = lease, look = look, suspect = suspect == '1' }
end

function V.gpu_ok(text)
    return gpu_read(text) ~= nil
end

local function gpu_write(c, uuid, g)
    c.sets[#c.sets + 1] = uuid
    c.sets[#c.sets + 1] = g.worker .. ' ' .. g.token .. ' ' .. text_of(g.lease) .. ' ' .. text_of(g.look) .. ' ' ..
        (g.suspect and '1' or '0')
end

local function gpu_renew(c, uuid, token)
    gpu_write(c, uuid, { worker = c.worker, token = token, lease = c.lease, look = NOW + c.lease })
    c.answer[uuid] = token
    c.held = c.held + 1
end

-- Looks at another's lease; true when it is over.
local function gpu_over(c, uuid, g)
    if g.look > NOW + g.lease then -- A clock that was set back must not keep it for ever.
        g.look = NOW + g.lease
        gpu_write(c, uuid, g)
        return false
    elseif NOW < g.look then
        return false
    elseif g.suspect then
        return true
    end
    g.suspect, g.look = true, NOW + math.ceil(g.lease * 2 / 3)
    gpu_write(c, uuid, g)
    return false
end

local function gpus_look(c, list)
    for _, gpu in ipairs(list) do
        local g = c.known[gpu.uuid]
        if g and g.worker == c.worker and (gpu.token == '' or gpu.token == g.token) then
            gpu_renew(c, gpu.uuid, g.token) -- Without a token: the answer that gave it was lost.
        elseif gpu.token ~= '' and not g then
            gpu_renew(c, gpu.uuid, gpu.token) -- Redis forgot it, and nobody has it.
        elseif gpu.token == '' and (not g or gpu_over(c, gpu.uuid, g)) then
            c.free[#c.free + 1] = gpu.uuid
        end
    end
end

local function gpus_take(c, want, several)
    local reach = math.min(want, math.floor((c.held + #c.free) / several) * several)
    for _, uuid in ipairs(c.free) do
        if c.held >= reach then
            return
        end
        Q.meta_set('token', Q.meta().token + 1)
        gpu_renew(c, uuid, text_of(Q.meta().token))
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
    local key = P .. 'gpus:' .. label_arg(args, 2, 64, 'boot')
    local lease = integer_arg(args, 3, 1, LEASE_MS_MAX, 'lease_ms')
    local want = integer_arg(args, 4, 0, GPUS_MAX, 'want')
    local several = integer_arg(args, 5, 1, GPUS_MAX, 'several')
    local n = integer_arg(args, 6, 0, GPUS_MAX, 'n')
    args_exactly(args, 6 + 2 * n, 'worker boot lease_ms want several n, then n times uuid token')
    local list, named = gpus_read(args, n)
    local c = { worker = worker, lease = lease, known = {}, held = 0, free = {}, answer = {}, sets = {} }
    local fields, gone = call('HGETALL', key), {}
    if #fields / 2 + n > GPUS_KEPT_MAX then
        call('UNLINK', key) -- Lists that changed hundreds of times: those who live renew theirs.
        fields = {}
    end
    for i = 1, #fields, 2 do
        local g = gpu_read(fields[i + 1])
        c.known[fields[i]] = g
        if not g or (g.worker == worker and not named[fields[i]]) then
            gone[#gone + 1] = fields[i]
        end
    end
    gpus_look(c, list)
    gpus_take(c, want, several)
    if #gone > 0 then
        call('HDEL', key, unpack(gone))
    end
    if #c.sets > 0 then
        call('HSET', key, unpack(c.sets))
        call('PEXPIRE', key, DAY_MS)
    end
    local reply = {}
    for i, gpu in ipairs(list) do
        reply[i] = c.answer[gpu.uuid] or ''
    end
    return reply
end)
