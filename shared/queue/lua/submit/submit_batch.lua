--[[
submit_batch: makes several submits in one call. Each succeeds or fails by itself.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] n      1 to 500
ARGV[2...]     n times the 13 arguments of submit

Returns an array of n replies as submit's.
Holds   what the submits one after another would leave.
Cost    n times submit's; plain submits of one flow share their look-ups and the writes to its sets.
--]]
verb('submit_batch', 'submit', function(args)
    local n = integer_arg(args, 1, 1, 500, 'n')
    args_exactly(args, 1 + n * Submit.ARGS_COUNT, 'n, then n times submit\'s')
    local batch = PlainSubmits.read(args, 2, n)
    for i = 1, n do
        if not batch.replies[i] and not PlainSubmits.take(batch, i) then
            PlainSubmits.other(batch, i)
        end
    end
    PlainSubmits.write(batch)
    return batch.replies
end)
