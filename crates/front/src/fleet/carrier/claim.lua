-- Takes the fence of a slot.
--
-- KEYS[1]: the fence; KEYS[2]: a key that never exists, so that a node that gives the slot to another one
-- refuses. ARGV[1]: the token; ARGV[2]: the slot, where keys without a fence are somebody else's, or nothing.
--
-- It answers with what the fence is now; `{-1, FENCE}` where a later attempt has it; `{-2, KEYS}` where keys
-- are somebody else's.
-- Tokens are digits of one width, so they compare as numbers of any size do, and in any locale.
local held = redis.call('GET', KEYS[1])
local turn = 0
if held then
  local token = string.sub(held, 1, #ARGV[1])
  if token > ARGV[1] then return {-1, held} end
  if token == ARGV[1] then turn = tonumber(string.sub(held, #token + 2)) or 0 end
elseif ARGV[2] ~= '' then
  local keys = redis.call('CLUSTER', 'COUNTKEYSINSLOT', ARGV[2])
  if keys > 0 then return {-2, keys} end
end
local mine = ARGV[1] .. '.' .. string.format('%010d', turn + 1)
redis.call('SET', KEYS[1], mine)
return mine
