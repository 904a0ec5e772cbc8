#include "generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

namespace gpt {
namespace {

std::int64_t pick(const at::Tensor& scores, double temperature, const at::Generator& generator) {
  if (temperature == 0) return scores.argmax().item<std::int64_t>();
  return at::multinomial(at::softmax(scores / temperature, -1), 1, /*replacement=*/false, generator)
      .item<std::int64_t>();
}

char printable(std::int64_t token) {
  const auto byte = static_cast<unsigned char>(token);
  const bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
  return control ? '?' : static_cast<char>(byte);
}

}  // namespace

std::string generate(Gpt& model, const GenerateOptions& options) {
  const at::NoGradGuard no_grad;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::vector<std::int64_t> tokens;
  for (const char character : options.prompt) tokens.push_back(static_cast<unsigned char>(character));
  for (std::int64_t i = 0; i < options.bytes; ++i) {
    const auto seen = std::min(static_cast<std::int64_t>(tokens.size()), model->options().context);
    const auto input = at::from_blob(tokens.data() + tokens.size() - seen, {1, seen}, at::kLong);
    tokens.push_back(pick(model(input)[0][-1], options.temperature, generator));
  }
  std::string text;
  for (const auto token : tokens) text += printable(token);
  return text;
}

}  // namespace gpt
