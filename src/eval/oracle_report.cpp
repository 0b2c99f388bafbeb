#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "eval/oracle.h"
#include "eval/svg.h"
#include "io/json_value.h"

namespace hysparse {
namespace {

Json number(const OracleMean& m) {
  return m.count > 0 ? Json(m.value()) : Json();
}

Json mean_json(const OracleMean& m, const OracleMean& chance) {
  Json j;
  j["share"] = number(m);
  j["chance"] = number(chance);
  j["counted"] = m.count;
  return j;
}

std::set<int64_t> hops_of(const OracleResult& r) {
  std::set<int64_t> hops;
  for (const OracleLayer& l : r.layers)
    for (const auto& [hop, mean] : l.gold) hops.insert(hop);
  return hops;
}

std::string share_text(const OracleMean& m, const OracleMean& chance) {
  return m.count > 0 ? fmt::format("{:.3f} ({:.3f})", m.value(), chance.value()) : "-";
}

ReportTable layers_table(const OracleResult& r) {
  ReportTable t{"", {"full layer", "read", "mass covered", "neighbours alike"}, {}};
  for (const int64_t hop : hops_of(r)) t.head.push_back(fmt::format("gold block, hop {}", hop));
  for (const OracleLayer& l : r.layers) {
    std::vector<std::string> row = {std::to_string(l.layer), l.read ? "yes" : "no",
                                    share_text(l.mass, l.share),
                                    share_text(l.neighbours, l.neighbour_chance)};
    for (const int64_t hop : hops_of(r)) row.push_back(share_text(l.gold.at(hop), l.gold_chance.at(hop)));
    t.rows.push_back(row);
  }
  return t;
}
ReportTable stability_table(const OracleResult& r) {
  ReportTable t{"", {"blocks of the column's layer that are among the row's"}, {}};
  for (const OracleLayer& l : r.layers) t.head.push_back(std::to_string(l.layer));
  for (size_t a = 0; a < r.layers.size(); ++a) {
    std::vector<std::string> row = {std::to_string(r.layers[a].layer)};
    for (size_t b = 0; b < r.layers.size(); ++b)
      row.push_back(share_text(r.stability[a][b], r.stability_chance[a][b]));
    t.rows.push_back(row);
  }
  return t;
}

std::string intro(const ModelConfig& c, const OracleResult& r) {
  return fmt::format(
      "{} rows, {} tokens; {} of them have more blocks behind them than the {} of {} tokens that "
      "are selected, and count. In brackets: what a random selection of the same size would give.",
      r.rows, r.tokens, r.counted, c.entries(), c.hysparse_block_size);
}

}  // namespace

std::string oracle_json(const ModelConfig& c, const OracleResult& r) {
  Json j;
  j["rows"] = r.rows;
  j["tokens"] = r.tokens;
  j["counted"] = r.counted;
  j["block"] = c.hysparse_block_size;
  j["entries"] = c.entries();
  j["layers"] = Json::array();
  for (const OracleLayer& l : r.layers) {
    Json x;
    x["layer"] = l.layer;
    x["read"] = l.read;
    x["mass"] = mean_json(l.mass, l.share);
    x["neighbours"] = mean_json(l.neighbours, l.neighbour_chance);
    for (const auto& [hop, mean] : l.gold)
      x["gold"][std::to_string(hop)] = mean_json(mean, l.gold_chance.at(hop));
    j["layers"].push_back(std::move(x));
  }
  j["stability"] = Json::array();
  for (size_t a = 0; a < r.layers.size(); ++a)
    for (size_t b = 0; b < r.layers.size(); ++b) {
      Json x = mean_json(r.stability[a][b], r.stability_chance[a][b]);
      x["of"] = r.layers[b].layer;
      x["in"] = r.layers[a].layer;
      j["stability"].push_back(std::move(x));
    }
  return dump_json(j);
}

std::string oracle_text(const ModelConfig& c, const OracleResult& r) {
  std::string out = fmt::format("{}\n\n{}", intro(c, r), table_text(layers_table(r)));
  if (r.layers.size() > 1) out += fmt::format("\n{}", table_text(stability_table(r)));
  return out;
}

std::string oracle_html(const ModelConfig& c, const OracleResult& r, const std::string& title) {
  std::string body = fmt::format("<h1>{}</h1>\n<p>{}</p>\n", html_escape(title), html_escape(intro(c, r)));
  body += table_html(layers_table(r));
  std::vector<SvgStrip> mass, alike;
  std::vector<std::string> names;
  std::vector<std::vector<double>> cells;
  for (size_t a = 0; a < r.layers.size(); ++a) {
    const OracleLayer& l = r.layers[a];
    names.push_back(fmt::format("layer {}", l.layer));
    mass.push_back({names.back(), {l.share.value()}, l.mass.value(), l.mass.value(), l.mass.value()});
    alike.push_back({names.back(), {l.neighbour_chance.value()}, l.neighbours.value(), NAN, NAN});
    cells.emplace_back();
    for (const OracleMean& m : r.stability[a]) cells.back().push_back(m.value());
  }
  body += svg_strips("Attention mass on the selected blocks (line), of an even attention (point)", mass, NAN);
  body += svg_strips("Blocks shared with the token before (line), by chance (point)", alike, NAN);
  std::vector<SvgLine> gold;
  for (const int64_t hop : hops_of(r)) {
    SvgLine l{fmt::format("hop {}", hop), {}, {}};
    for (const OracleLayer& layer : r.layers) {
      l.x.push_back(layer.layer);
      l.y.push_back(layer.gold.at(hop).value());
    }
    gold.push_back(l);
  }
  if (!gold.empty()) body += svg_lines("Asking tokens that select the gold block", "full layer", gold);
  if (r.layers.size() > 1) {
    body += table_html(stability_table(r));
    body += svg_matrix("Blocks of the column's layer that are among the row's", names, cells);
  }
  return html_page(title, body);
}

}  // namespace hysparse
