--[[
bad: set aside bytes that are no record, with a reason, where people can look at them.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] bytes  at most 64 KiB; the first 4 KiB are kept
ARGV[2] reason one sentence

Returns "ok".
Cost    O(1).
--]]
verb('bad', 'drain', function(args)
    args_exactly(args, 2, 'bytes reason')
    Q.bad('', args[2], args[1])
    return 'ok'
end)
