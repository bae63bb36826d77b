--[[
loss_forget: removes the recorded losses of a sink, so that status does not show them any more.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] sink   name

Returns "ok".
Cost    O(losses), at most 1,000.
--]]
verb('loss_forget', 'drain', function(args)
    args_exactly(args, 1, 'sink')
    local sink = Results.sink_arg(args)
    for _, row in ipairs(call('LRANGE', PREFIX .. 'loss', 0, -1)) do
        local ok, loss = pcall(cjson.decode, row)
        if not ok or type(loss) ~= 'table' or loss.sink == sink then
            call('LREM', PREFIX .. 'loss', 1, row)
        end
    end
    return 'ok'
end)
