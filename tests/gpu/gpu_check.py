"""Every check of the GPU kernels against float64 references; the last line counts them."""
import os
import sys
import traceback

sys.path[:0] = [os.path.join(os.path.dirname(__file__), "../../python")]

import check_attention
import check_attention_backward
import check_decode
import check_experts
import check_models
import check_sparse
import check_sparse_layer


def main():
    passed = failed = 0
    for module in (check_attention, check_attention_backward, check_sparse, check_sparse_layer, check_decode, check_experts, check_models):
        try:
            results = module.run()
        except Exception:
            traceback.print_exc()
            results = [False]
        passed += sum(results)
        failed += len(results) - sum(results)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
