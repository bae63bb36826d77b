--[[
submit_batch: many submits in one call, each on its own: one that is refused does not hold the others up.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] n      1 to 500
ARGV[2...]     n times the 13 arguments of submit

Returns an array of n replies as submit's.
Cost    n times submit's.
--]]
verb('submit_batch', 'submit', function(args)
    local n = integer_arg(args, 1, 1, 500, 'n')
    args_exactly(args, 1 + n * SUBMIT_ARGS, 'n, then n times submit\'s')
    local replies = {}
    for i = 1, n do
        local s, wrong = V.submit_read(args, 2 + (i - 1) * SUBMIT_ARGS)
        local reply = { 'refused', wrong }
        if s then
            local ok, problem = pcall(V.submit_one, s)
            reply = ok and problem or { 'refused', error_text(problem) }
        end
        replies[i] = reply
    end
    return replies
end)
