// Draws every schedule as one picture: docs/schedules.svg.
//
//   guide_schedules > docs/schedules.svg
#include <tutti/optim/schedules.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t total = 1000;
constexpr std::int64_t warmup = 100;

struct Panel {
  std::string call;
  std::string arguments;
  tutti::LrSchedule curve;
};

std::vector<Panel> panels() {
  return {
      {"constant", "", tutti::constant()},
      {"constant_with_warmup", "W", tutti::constant_with_warmup(warmup)},
      {"linear_with_warmup", "W, T", tutti::linear_with_warmup(warmup, total)},
      {"cosine_with_warmup", "W, T", tutti::cosine_with_warmup(warmup, total)},
      {"cosine_with_hard_restarts", "W, T, 3", tutti::cosine_with_hard_restarts(warmup, total, 3)},
      {"cosine_with_min_lr", "W, T, 0.2", tutti::cosine_with_min_lr(warmup, total, 0.2)},
      {"cosine_warmup_with_min_lr", "W, T, 0.2, 0.5, 0.3",
       tutti::cosine_warmup_with_min_lr(warmup, total, 0.2, 0.5, 0.3)},
      {"polynomial", "W, T, 0.1, 2", tutti::polynomial(warmup, total, 0.1, 2)},
      {"inverse_sqrt", "W", tutti::inverse_sqrt(warmup)},
      {"warmup_stable_decay", "W, 300, {T}", tutti::warmup_stable_decay(warmup, 300, {.total_steps = total})},
      {"step", "250, 0.5", tutti::step(250, 0.5)},
      {"multi_step", "{500, 800}, 0.3", tutti::multi_step({500, 800}, 0.3)},
      {"exponential", "0.997", tutti::exponential(0.997)},
      {"one_cycle", "T", tutti::one_cycle(total)},
  };
}

constexpr int columns = 4;
constexpr int width = 236;
constexpr int height = 150;
constexpr int plot_width = 200;
constexpr int plot_height = 84;

void draw(const Panel& panel, int left, int top) {
  std::printf("<g transform=\"translate(%d %d)\">\n", left, top);
  std::printf("<text x=\"0\" y=\"12\" font-weight=\"bold\">%s</text>\n", panel.call.c_str());
  std::printf("<text x=\"0\" y=\"28\" fill=\"#59636e\">(%s)</text>\n", panel.arguments.c_str());
  std::printf("<path d=\"M0 36v%dh%d\" fill=\"none\" stroke=\"#9aa4af\"/>\n", plot_height, plot_width);
  std::printf("<polyline fill=\"none\" stroke=\"#1f6feb\" stroke-width=\"1.8\" points=\"");
  for (std::int64_t position = 0; position <= total; position += 5) {
    const double x = static_cast<double>(position) * plot_width / total;
    const double y = 36 + plot_height * (1 - panel.curve.factor(position));
    std::printf("%.1f,%.1f ", x, y);
  }
  std::printf("\"/>\n</g>\n");
}

}  // namespace

int main() {
  const auto all = panels();
  const int rows = (static_cast<int>(all.size()) + columns - 1) / columns;
  std::printf(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
      "font-family=\"sans-serif\" font-size=\"13\" fill=\"#1f2328\" role=\"img\">\n",
      columns * width, rows * height + 24, columns * width, rows * height + 24);
  std::printf("<title>The factor on the learning rate over 1000 optimizer steps, for every schedule</title>\n");
  std::printf("<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n");
  for (std::size_t i = 0; i < all.size(); ++i) {
    draw(all[i], 16 + static_cast<int>(i) % columns * width, 12 + static_cast<int>(i) / columns * height);
  }
  std::printf(
      "<text x=\"16\" y=\"%d\" fill=\"#59636e\" font-size=\"12\">Factor 0 to 1 over positions 0 to T = 1000; "
      "W = 100.</text>\n",
      rows * height + 14);
  std::printf("</svg>\n");
}
