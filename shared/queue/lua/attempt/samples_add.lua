--[[
samples_add: adds a piece of a samples file to the stream `PREFIX samples`, from which the logger takes it.

KEYS[1] prefix       "evalq:{queue}:"
ARGV[1] id           job
ARGV[2] token        of the attempt
ARGV[3] task         1 to 32 of [A-Za-z0-9._-]
ARGV[4] digest       32 hexadecimal digits: of the whole file
ARGV[5] bytes        of the whole file
ARGV[6] at           offset of the piece in the file
ARGV[7] stream_bytes how many bytes of files the stream may hold
ARGV[8] data         1 to 262,144 bytes

Returns "ok", "full" (only for the first piece: the whole file has no room now) or "stale".
Holds   `samples_bytes` of `PREFIX n` is the sum of the sizes of the files whose first piece is in the stream. So a file
        whose first piece has room can be sent to its end.
Cost    O(1).
--]]
local function check(args)
    args_exactly(args, 8, 'id token task digest bytes at stream_bytes data')
    local key = Job.parse(args[1])
    if not key or key.shard then
        refuse('\'' .. tostring(args[1]):sub(1, 60) .. '\' is no id of a whole job')
    end
    if not name_ok(args[3], 32) then
        refuse('task must be 1 to 32 of [A-Za-z0-9._-]')
    end
    if #args[4] ~= 32 or args[4]:find('%X') then
        refuse('digest must be 32 hexadecimal digits')
    end
    local bytes = integer_arg(args, 5, 1, SPAN, 'bytes')
    local at = integer_arg(args, 6, 0, bytes - 1, 'at')
    if #args[8] < 1 or #args[8] > 262144 or at + #args[8] > bytes then
        refuse('a piece must have 1 to 262144 bytes and end within its file')
    end
    return bytes, at, integer_arg(args, 7, 1, SPAN, 'stream_bytes')
end

verb('samples_add', 'grow', function(args)
    local bytes, at, stream_bytes = check(args)
    if not Job.held_by(args[1], args[2]) then
        return 'stale'
    end
    if at == 0 then
        local held = tonumber(call('HGET', PREFIX .. 'n', 'samples_bytes') or '0') or 0
        if held + bytes > stream_bytes then
            return 'full'
        end
        Queue.bump('samples_bytes', bytes)
    end
    call('XADD', PREFIX .. 'samples', '*', 'job', args[1], 'token', args[2], 'task', args[3], 'digest', args[4], 'bytes', args[5],
        'at', args[6], 'data', args[8])
    return 'ok'
end)
