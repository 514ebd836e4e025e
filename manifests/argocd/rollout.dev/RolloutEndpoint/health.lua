-- Healthy when Ready, Degraded when only a person can help, Progressing otherwise (the rules of kstatus).
local hs = { status = "Progressing", message = "Waiting for the operator" }
if obj.status == nil or obj.status.conditions == nil then
  return hs
end
local generation = obj.metadata.generation
if generation ~= nil and (obj.status.observedGeneration or 0) < generation then
  hs.message = "Waiting for the operator to see the newest spec"
  return hs
end
for _, condition in ipairs(obj.status.conditions) do
  local text = condition.reason .. ": " .. (condition.message or "")
  if condition.type == "Stalled" and condition.status == "True" then
    return { status = "Degraded", message = text }
  elseif condition.type == "Ready" then
    hs.message = text
    if condition.status == "True" then
      hs.status = "Healthy"
    end
  end
end
return hs
