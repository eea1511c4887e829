# Calls RPCs of every service with the client that is generated from openapi.json; prints what it read as JSON.
require "json"
require "reasond_rest"
require "uri"

include ReasondRest

ReasondRest.configure do |config|
  address = URI(ARGV.fetch(0))
  config.scheme = address.scheme
  config.host = "#{address.host}:#{address.port}"
  # As OpenAPI has a list in a query; Typhoeus numbers its items.
  config.params_encoding = :multi
  config.access_token = ENV.fetch("REASOND_TOKEN")
end
reasoning, executions, turns, repairs, agents =
  [ReasoningServiceApi, ExecutionServiceApi, TurnServiceApi, RepairServiceApi, AgentServiceApi].map(&:new)

task = ReasoningTask.new(query: "What is 17 * 24?", strategy: "chain_of_thought", budget: Budget.new(max_model_calls: 4))
answered = reasoning.reason(ReasonRequest.new(task: task)).reasoning
seen = executions.get_execution(answered.execution_id, trace_view: TraceView::TRACE_VIEW_STEPS)
listed = executions.list_executions(
  state: ExecutionState::EXECUTION_STATE_SUCCEEDED, create_time_after: Time.utc(2026).to_datetime, page_size: 5
)
stream = executions.follow_execution(answered.execution_id, after_sequence: "1")
begin
  executions.get_execution("nobody")
rescue ApiError => error
  refused = GoogleRpcStatus.build_from_hash(JSON.parse(error.response_body, symbolize_names: true))
end

start = TurnStart.new(message: "Hello", session_id: "ruby/1")
turn = turns.run_turn(RunTurnRequest.new(start: start)).turn
session = turns.get_session("ruby/1").session

files = SourceFiles.new(files: [SourceFile.new(path: "a.py", content: ["x = 1\n"].pack("m0"))])
plan = RepairTask.new(description: "Plan it.", files: files, plan: {}, budget: Budget.new(max_model_calls: 2))
repair = repairs.repair(RepairRequest.new(task: plan)).repair

card = JSON.generate(capabilities: ["ruby"], supported_methods: ["reasoning.execute"])
agent = agents.register_agent("ruby", RegisterAgentBody.new(card_json: card, ttl: "60s")).agent
found = agents.list_agents(capabilities: ["ruby"]).agents.map(&:agent_id)
agents.delete_agent("ruby", etag: agent.etag)

puts JSON.generate(
  answer: answered.answer,
  steps: seen.reasoning.trace.size,
  tokens: answered.metrics.usage.output_tokens.to_i,
  asked: seen.task.query,
  began: seen.execution.create_time.year,
  listed: listed.executions.map(&:execution_id).include?(answered.execution_id),
  events: stream.scan(/^data: (.*)$/).map { |(data)| JSON.parse(data).dig("reasoning", "sequence") },
  refused: [refused.code, refused.details.first.reason],
  turn: [turn.state, session.session_id, session.turn_count],
  repair: repair.finish_reason,
  agent: found
)
