"""What this machine has for runs, and what each lack costs: facts (``observe``), findings of them (``judge``)."""
