--[[
Backfill: the policy of that name. A claim gets a step newer than any ever taken, else the waiting step nearest the
middle of the widest gap between taken steps, so that the curve is evenly resolved at any time. Gaps lie in one session
each; a gap's entry may be out of date (its steps taken or gone) and is put right when it comes up: a bounded number of
times a call.
--]]
local function gaps_key(flow, class, band)
    return PREFIX .. 'gaps:' .. flow .. ':' .. class .. ':' .. band
end

-- The taken places at or next to a place, in its session: below and above. Defaults: the session's first place, and nil.
local function around(flow, place)
    local base = place - place % SPAN
    local taken = PREFIX .. 'taken:' .. flow
    local below = call('ZREVRANGEBYSCORE', taken, text_of(place), text_of(base), 'LIMIT', 0, 1)[1]
    local above = call('ZRANGEBYSCORE', taken, text_of(place), '(' .. text_of(base + SPAN), 'LIMIT', 0, 1)[1]
    return tonumber(below) or base, tonumber(above)
end

-- Notes the gap around a waiting place. A gap without an upper end reaches to that place.
function Backfill.note(flow, class, band, place)
    local low, high = around(flow, place)
    if high == low then
        high = nil -- The step was taken before, so this is a retry. It is at the edge of the gap above it.
        local next_up = call('ZRANGEBYSCORE', PREFIX .. 'taken:' .. flow, '(' .. text_of(place),
            '(' .. text_of(place - place % SPAN + SPAN), 'LIMIT', 0, 1)[1]
        high = tonumber(next_up)
    end
    local member = text_of(low) .. ':' .. (high and text_of(high) or '')
    local width = (high or math.max(place, low)) - low
    if high then
        call('ZADD', gaps_key(flow, class, band), width, member)
    else
        call('ZADD', gaps_key(flow, class, band), 'GT', width, member)
    end
end

-- The waiting step between low and high that is nearest the middle: tag and place, or nil.
local function nearest(wait, low, high)
    local middle = low + math.floor((high - low) / 2)
    local up = call('ZRANGEBYSCORE', wait, text_of(middle), text_of(high), 'WITHSCORES', 'LIMIT', 0, 1)
    local down = call('ZREVRANGEBYSCORE', wait, '(' .. text_of(middle), text_of(low), 'WITHSCORES', 'LIMIT', 0, 1)
    local up_place, down_place = tonumber(up[2]), tonumber(down[2])
    if up_place and (not down_place or up_place - middle < middle - down_place) then
        return up[1], up_place
    end
    return down[1], down_place
end

-- Marks a place as taken and splits its gap.
function Backfill.take(flow, class, band, place)
    local low, high = around(flow, place)
    local taken = PREFIX .. 'taken:' .. flow
    if call('ZADD', taken, text_of(place), text_of(place)) == 0 then
        return
    end
    local gaps, wait = gaps_key(flow, class, band), PREFIX .. 'wait:' .. flow .. ':' .. class .. ':' .. band
    call('ZREM', gaps, text_of(low) .. ':' .. (high and text_of(high) or ''))
    for _, gap in ipairs({ { low, place }, { place, high } }) do
        local top = gap[2] or (place - place % SPAN + SPAN - 1)
        local last = call('ZREVRANGEBYSCORE', wait, text_of(top), text_of(gap[1]), 'WITHSCORES', 'LIMIT', 0, 1)
        if last[1] then
            call('ZADD', gaps, (gap[2] or tonumber(last[2])) - gap[1],
                text_of(gap[1]) .. ':' .. (gap[2] and text_of(gap[2]) or ''))
        end
    end
end

-- After a job was taken from its place. top: the highest place taken before.
function Backfill.note_taken(flow, class, band, place, top)
    Backfill.take(flow, class, band, place)
    if place > top then
        call('HSET', PREFIX .. 'flow:' .. flow, 'taken_top', text_of(place))
    end
end

-- A step that was taken inside the gap, which is then no gap any more. Nil: it is still a gap.
local function gap_cut(flow, low, high)
    local base = low - low % SPAN
    return call('ZRANGEBYSCORE', PREFIX .. 'taken:' .. flow, '(' .. text_of(low),
        high and '(' .. text_of(high) or '(' .. text_of(base + SPAN), 'LIMIT', 0, 1)[1]
end

-- Whether a gap's entry is up to date. Corrects the entry if it is not.
local function gap_true(flow, gaps, member, low, high, wait)
    local base = low - low % SPAN
    local inside = gap_cut(flow, low, high)
    if not inside then
        return true
    end
    call('ZREM', gaps, member)
    local cut = tonumber(inside)
    local last = call('ZREVRANGEBYSCORE', wait, text_of(high or base + SPAN - 1), text_of(cut), 'WITHSCORES',
        'LIMIT', 0, 1)
    if call('ZCOUNT', wait, text_of(low), text_of(cut)) > 0 then
        call('ZADD', gaps, cut - low, text_of(low) .. ':' .. text_of(cut))
    end
    if last[1] then
        call('ZADD', gaps, (high or tonumber(last[2])) - cut, text_of(cut) .. ':' .. (high and text_of(high) or ''))
    end
    return false
end

-- Pops one job of the waiting set. Returns its tag, or nil if the set is empty.
function Backfill.pop(flow, class, band)
    local wait = PREFIX .. 'wait:' .. flow .. ':' .. class .. ':' .. band
    local gaps = gaps_key(flow, class, band)
    local newest = call('ZREVRANGE', wait, 0, 0, 'WITHSCORES')
    if not newest[1] then
        call('UNLINK', gaps)
        return nil
    end
    local top = tonumber(call('HGET', PREFIX .. 'flow:' .. flow, 'taken_top')) or -1
    local tag, place = newest[1], tonumber(newest[2])
    if place <= top then
        for _ = 1, 4 * FEW do
            local widest = call('ZREVRANGE', gaps, 0, 0, 'WITHSCORES')
            local low_text, high_text = (widest[1] or ''):match('^(%d+):(%d*)$')
            if not low_text then
                break
            end
            local low, high = tonumber(low_text), tonumber(high_text)
            if gap_true(flow, gaps, widest[1], low, high, wait) then
                local found, at = nearest(wait, low, high or low + tonumber(widest[2]))
                if found then
                    tag, place = found, at
                    break
                end
                call('ZREM', gaps, widest[1])
            end
        end
    end
    call('ZREM', wait, tag)
    Backfill.note_taken(flow, class, band, place, top)
    return tag
end

